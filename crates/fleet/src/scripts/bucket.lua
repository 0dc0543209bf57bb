-- The token bucket and GCRA. Of each rate: limit, window, burst. Field: RATE:missing, the tokens that are missing in parts of
-- which a token has as many as the window has microseconds: so `limit` parts come back a microsecond, whatever the limit. And
-- the least that was missing: RATE:low since RATE:from, and RATE:before for at least EPOCH before that.
local DEEPEST = 4503599627370496 -- 2^52: a debt is counted up to here, eight bursts or more

local EPOCH = 500000 -- longer than a grant is out

local function open(index, limit, window, burst)
  local name = text(index)
  local whole, missing = burst * window, state[name .. ':missing'] or 0
  local elapsed = now - (state.at or now)
  -- Divided first: the product could be above what is exact.
  if elapsed >= math.ceil(missing / limit) then
    missing = 0
  else
    missing = missing - elapsed * limit
  end
  local was_full = missing == 0
  local low, before, from = state[name .. ':low'] or 0, state[name .. ':before'] or 0, state[name .. ':from'] or now
  low = math.min(low, missing)
  if now - from >= EPOCH then low, before, from = missing, low, now end

  -- The least that was missing since `since`, as far as it is known.
  local function lowest()
    if since >= from then return low end
    return since >= from - EPOCH and math.min(low, before) or 0
  end

  return {
    largest = burst,
    left = function() return math.floor((whole - missing) / window) end,
    charge = function(cost)
      if cost > math.floor((DEEPEST - missing) / window) then
        missing = DEEPEST
      else
        missing = missing + cost * window
      end
    end,
    -- All of it, unless the bucket would have been full since without it: what it could not have held is not given back.
    give_back = function(cost)
      local parts, age = cost * window, now - since
      local returned = math.min(parts, lowest())
      if age < math.ceil(parts / limit) then returned = math.max(returned, parts - age * limit) end
      missing = math.max(0, missing - returned)
      low, before = math.max(0, low - parts), math.max(0, before - parts)
    end,
    full_for = function(cost)
      return math.max(0, math.ceil((missing + cost * window - whole) / limit))
    end,
    ends = function() return NEVER end,
    lasts = function() return math.ceil(missing / limit) end,
    save = function()
      -- Nothing that is given back later was charged before.
      if was_full then low, before, from = missing, 0, now end
      write(name .. ':missing', missing)
      write(name .. ':low', low)
      write(name .. ':before', before)
      write(name .. ':from', from)
    end,
  }
end

