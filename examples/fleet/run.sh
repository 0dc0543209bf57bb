#!/usr/bin/env bash
# One limit over three gateways: starts a store and three gateways in a temporary directory, sends 12 requests to a limit of
# 4 a second, prints who passed, and ends what it has started. It needs redis-server, redis-cli and curl.
#
#   examples/fleet/run.sh                         # the binary of PATH, or of target/release
#   SLUICEGATE=target/debug/sluicegate examples/fleet/run.sh
#   PORT=7300 examples/fleet/run.sh               # the gateways listen on 7300, 7301 and 7302; by default from 7201 on
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
if [[ -n ${SLUICEGATE:-} ]]; then
  gateway=$SLUICEGATE
elif ! gateway=$(command -v sluicegate); then
  gateway=$root/target/release/sluicegate
fi
if ! command -v "$gateway" >/dev/null; then
  echo "no sluicegate: \`cargo build --release\`, or set SLUICEGATE" >&2
  exit 1
fi
# The gateways start in another directory.
gateway=$(realpath "$(command -v "$gateway")")
for needed in redis-server redis-cli curl; do
  command -v "$needed" >/dev/null || { echo "$needed is not installed" >&2; exit 1; }
done

first=${PORT:-7201}
dir=$(mktemp -d)
pids=()

finish() {
  local status=$?
  trap - EXIT
  # A signal that comes while this ends things would leave the rest of them running.
  trap '' INT TERM
  # The store goes last, so that the gateways can say that they leave.
  for ((at = ${#pids[@]} - 1; at >= 0; at--)); do
    kill "${pids[at]}" 2>/dev/null || true
    wait "${pids[at]}" 2>/dev/null || true
  done
  if ((status != 0)); then
    tail -n 5 "$dir"/*.log >&2 || true
  fi
  rm -rf "$dir"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Calls the rest of its arguments until they succeed, for 10 s.
await() {
  local name=$1
  shift
  for _ in {1..100}; do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.1
  done
  echo "$name is not there after 10 s" >&2
  exit 1
}

redis-server --port 0 --unixsocket "$dir/redis.sock" --unixsocketperm 700 --dir "$dir" --save '' --appendonly no \
  --maxmemory-policy noeviction >"$dir/redis.log" 2>&1 &
pids+=($!)
await "the store" redis-cli -s "$dir/redis.sock" ping

(umask 077 && "$gateway" fleet key >"$dir/fleet.key")
for number in 1 2 3; do
  cat >"$dir/gw-$number.toml" <<END
[server]
workers = 1

[[listener]]
address = "127.0.0.1:$((first + number - 1))"

[fleet]
store = "unix://$dir/redis.sock"
secret_file = "fleet.key"
node = "gw-$number"

[[limit]]
name = "per-key"
key = "header:x-api-key"
algorithm = "token-bucket"
rate = "4/s"
shared = "strict"

[[route]]
name = "all"
limits = ["per-key"]
respond = { status = 200, body = "ok\n" }
END
  "$gateway" check -c "$dir/gw-$number.toml" >/dev/null
  "$gateway" run -c "$dir/gw-$number.toml" >"$dir/gw-$number.log" 2>&1 &
  pids+=($!)
done

members() {
  (($(redis-cli -s "$dir/redis.sock" zcard sluicegate:members) == 3))
}
await "a gateway" members
for number in 1 2 3; do
  await "gw-$number" curl -s -o "$dir/answer" "http://127.0.0.1:$((first + number - 1))/" -H 'x-api-key: warm-up'
done

echo "members of the fleet:"
redis-cli -s "$dir/redis.sock" zrange sluicegate:members 0 -1 | sed 's/^/  /'
echo "12 requests with one key over three gateways, 4/s with a burst of 4:"
passed=0
for number in {1..12}; do
  at=$(((number - 1) % 3))
  read -r status rest < <(curl -s -o /dev/null -H 'x-api-key: alice' \
    -w '%{http_code} %header{ratelimit}\n' "http://127.0.0.1:$((first + at))/")
  echo "  request $number  gw-$((at + 1))  $status  $rest"
  if [[ $status == 200 ]]; then passed=$((passed + 1)); fi
done
echo "$passed of 12 passed; three gateways that do not share would let all 12 pass"
echo "keys in the store, whose values are fingerprints under the secret:"
redis-cli -s "$dir/redis.sock" --scan --pattern 'sluicegate:per-key:*' | sed 's/^/  /'
