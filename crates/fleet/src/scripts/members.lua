-- KEYS[1]: a sorted set, each member at the millisecond of its last heartbeat. ARGV: the member, or nothing for one that only
-- looks; how long a member stays without one, in ms; how many names are wanted.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stays = tonumber(ARGV[2])

local function text(number)
  return string.format('%.0f', number)
end

if ARGV[1] ~= '' then
  redis.call('ZADD', KEYS[1], text(now), ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. text(now - stays))
-- Of a clock that was set back; who lives comes again.
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. text(now + stays), '+inf')
redis.call('PEXPIRE', KEYS[1], 10000)
local names = redis.call('ZRANGE', KEYS[1], 0, tonumber(ARGV[3]) - 1)
return { redis.call('ZCARD', KEYS[1]), names, time[1] * 1000000 + time[2] }
