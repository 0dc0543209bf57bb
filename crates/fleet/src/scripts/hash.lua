-- KEYS[1] is a hash.
local state = {}
local fields = redis.call('HGETALL', KEYS[1])
for at = 1, #fields, 2 do
  state[fields[at]] = number(fields[at + 1])
end

-- The clock may be set back: it stands still then.
local now = math.max(clock, state.at or 0)
local since = math.max(0, now - back_age)

-- When the last grant that is out has come back: `out`. A clock that was set back may have written a later one.
local out = math.min(state.out or 0, now + 2000000)

-- The fields to write.
local written = { 'at', text(now) }
local function write(field, value)
  written[#written + 1] = field
  written[#written + 1] = text(value)
end

local was_kept = #fields > 0
local function store()
  if out > now then write('out', out) end
  redis.call('HSET', KEYS[1], unpack(written))
end

