-- The store's own clock, in microseconds, and how long a key is kept.
local time = redis.call('TIME')
local clock = time[1] * 1000000 + time[2]

local function keep(ms)
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', ms))
end

