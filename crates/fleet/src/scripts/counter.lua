-- The sliding counter. Of each rate: limit, window. Fields: RATE:from, when the window began, RATE:count, and RATE:before, what
-- was counted in the window before.

-- The whole part of count * part / whole, and the rest; a part is at most the whole, and that 2^51. Digit by digit where the
-- product would be above what is exact.
local function divide(count, part, whole)
  local digit = math.floor(4503599627370496 / whole) -- 2^52
  local quotient, product = 0, 0
  if count >= digit then
    local high = math.floor(count / digit)
    local of_high, rest = divide(high, part, whole)
    quotient, product, count = of_high * digit, rest * digit, count - high * digit
  end
  product = product + count * part
  local more = math.floor(product / whole)
  return quotient + more, product - more * whole
end

local function open(index, limit, window)
  local name, start = text(index), now - now % window
  local from, count, before = state[name .. ':from'], state[name .. ':count'] or 0, state[name .. ':before'] or 0
  if from ~= start then
    before = from == start - window and count or 0
    from, count = start, 0
  end
  before, count = math.min(before, MOST), math.min(count, MOST)

  local function weight()
    return (divide(before, from + window - now, window))
  end

  -- How much of a window has to go until what was counted in the one before weighs at most so much.
  local function lightens(counted, weighs)
    if counted <= weighs then return 0 end
    local left, rest = divide(window, weighs + 1, counted)
    return window - left + (rest == 0 and 1 or 0)
  end

  return {
    largest = limit,
    left = function() return limit - count - weight() end,
    charge = function(cost) count = math.min(count + cost, MOST) end,
    give_back = function(cost)
      if since >= from then
        if count < MOST then count = math.max(0, count - cost) end
      elseif since >= from - window and before < MOST then
        before = math.max(0, before - cost)
      end
    end,
    full_for = function(cost)
      local fits = limit - cost
      if count + weight() <= fits then return 0 end
      if count <= fits then
        local gone = lightens(before, fits - count)
        if gone < window then return from + gone - now end
      end
      return from + window + math.min(lightens(count, fits), window) - now
    end,
    ends = function() return from + window - now end,
    lasts = function()
      if count > 0 then return from + 2 * window - now end
      return before > 0 and from + window - now or 0
    end,
    save = function()
      write(name .. ':from', from)
      write(name .. ':count', count)
      write(name .. ':before', before)
    end,
  }
end

