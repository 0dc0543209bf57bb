-- The fixed window. Of each rate: limit, window, and 0 for windows of the clock, 1 for those that open with the first that is
-- counted. Fields: RATE:from, when the window began, and RATE:count.
local function open(index, limit, window, align)
  local name = text(index)
  local from, count = state[name .. ':from'] or 0, state[name .. ':count'] or 0
  if align == 0 then
    local start = now - now % window
    if from ~= start then from, count = start, 0 end
  elseif from > now or now >= from + window then
    count = 0
  end

  return {
    largest = limit,
    left = function() return limit - count end,
    charge = function(cost)
      if align == 1 and count == 0 then from = now end
      count = math.min(count + cost, MOST)
    end,
    give_back = function(cost)
      if since >= from and count < MOST then count = math.max(0, count - cost) end
    end,
    full_for = function(cost)
      if count + cost <= limit then return 0 end
      return from + window - now
    end,
    ends = function()
      if count == 0 then return NEVER end
      return from + window - now
    end,
    lasts = function()
      if count == 0 then return 0 end
      return from + window - now
    end,
    save = function()
      write(name .. ':from', from)
      write(name .. ':count', count)
    end,
  }
end

