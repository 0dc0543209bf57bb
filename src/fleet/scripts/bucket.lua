-- The token bucket and GCRA. Of each rate: limit, window, burst. Field: RATE:missing, the tokens that are missing in parts of
-- which a token has as many as the window has microseconds: so `limit` parts come back a microsecond, whatever the limit.
local DEEPEST = 4503599627370496 -- 2^52: a debt is counted up to here, eight bursts or more

local function open(index, limit, window, burst)
  local field = text(index) .. ':missing'
  local whole, missing = burst * window, state[field] or 0
  local elapsed = now - (state.at or now)
  -- Divided first: the product could be above what is exact.
  if elapsed >= math.ceil(missing / limit) then
    missing = 0
  else
    missing = missing - elapsed * limit
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
    -- Not what has been refilled since.
    give_back = function(cost)
      local parts, age = cost * window, now - since
      if age < math.ceil(parts / limit) then
        missing = math.max(0, missing - (parts - age * limit))
      end
    end,
    full_for = function(cost)
      return math.max(0, math.ceil((missing + cost * window - whole) / limit))
    end,
    ends = function() return NEVER end,
    lasts = function() return math.ceil(missing / limit) end,
    save = function() write(field, missing) end,
  }
end

