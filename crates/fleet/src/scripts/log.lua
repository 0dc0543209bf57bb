-- The sliding log. Of each rate: limit, window. KEYS[1] is a sorted set, one for all rates: a member for each unit of cost, at the
-- instant at which it was charged, and named by a number that grows. There are as many as the largest limit at most, the
-- newest. The member '-' is at the newest instant of those for which there was no place.
local most_kept, longest = 0, 0
for at = 9, #ARGV, 4 do
  most_kept, longest = math.max(most_kept, tonumber(ARGV[at])), math.max(longest, tonumber(ARGV[at + 1]))
end

local function newest()
  local pair = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
  return pair[1], number(pair[2])
end

local name, at = newest()
local was_kept = name ~= nil
-- The clock may be set back: it stands still then.
local now = math.max(clock, at)
local since = math.max(0, now - back_age)
if was_kept then redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now - longest)) end
local lost = redis.call('ZSCORE', KEYS[1], '-')
local kept = redis.call('ZCARD', KEYS[1]) - (lost and 1 or 0)

-- The oldest go when there is no place: who waits for room waits for the newest.
local function enter(cost)
  local entered, first = math.min(cost, most_kept), lost and 1 or 0
  local excess = kept + entered - most_kept
  if excess > 0 then
    local last = redis.call('ZRANGE', KEYS[1], first + excess - 1, first + excess - 1, 'WITHSCORES')
    local gone = cost > most_kept and now or number(last[2])
    redis.call('ZREMRANGEBYRANK', KEYS[1], first, first + excess - 1)
    redis.call('ZADD', KEYS[1], text(gone), '-')
    lost = gone
  elseif cost > most_kept then
    redis.call('ZADD', KEYS[1], text(now), '-')
    lost = now
  end
  kept = kept - math.max(0, excess) + entered
  local serial = number((newest()))
  while entered > 0 do
    local pairs_of = {}
    for _ = 1, math.min(entered, 1000) do
      serial = serial + 1
      pairs_of[#pairs_of + 1] = text(now)
      pairs_of[#pairs_of + 1] = string.format('%016.0f', serial)
    end
    redis.call('ZADD', KEYS[1], unpack(pairs_of))
    entered = entered - #pairs_of / 2
  end
end

-- Those that were charged then or before: an older one leaves earlier. Nothing while some are lost: nobody knows how many.
local function take_out(cost)
  if lost then return end
  local gone = redis.call('ZREVRANGEBYSCORE', KEYS[1], text(since), '-inf', 'LIMIT', 0, cost)
  if #gone > 0 then
    redis.call('ZREM', KEYS[1], unpack(gone))
    kept = kept - #gone
  end
end

-- Nothing else says when a grant was made: the last charge may have been one.
local out = was_kept and at + hold + RETURNS or 0

local function store() end

local function open(index, limit, window)
  local function counted()
    return redis.call('ZCOUNT', KEYS[1], '(' .. text(now - window), '+inf')
  end

  return {
    largest = limit,
    left = function() return limit - counted() end,
    -- Once, for all rates.
    charge = function(cost) if index == 0 then enter(cost) end end,
    give_back = function(cost) if index == 0 then take_out(cost) end end,
    -- When the last one leaves that is in the way.
    full_for = function(cost)
      if counted() + cost <= limit then return 0 end
      local last = redis.call('ZREVRANGE', KEYS[1], limit - cost, limit - cost, 'WITHSCORES')
      return math.max(0, number(last[2]) + window - now)
    end,
    ends = function() return NEVER end,
    lasts = function()
      if index > 0 or kept <= 0 then return 0 end
      local _, last = newest()
      return math.max(0, last + longest - now)
    end,
    save = function() end,
  }
end

