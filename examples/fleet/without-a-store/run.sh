#!/usr/bin/env bash
# One limit over three gateways that have no store, and a cut between them. Each gateway runs in a network namespace of its own; a
# bridge in a fourth one joins them. Nothing of it is in the machine's own network. It needs root (on Linux), `ip` of iproute2,
# curl 7.84 or later, and 20 s. It ends and removes what it has made, also after Ctrl-C.
#
#   sudo examples/fleet/without-a-store/run.sh    # the binary of PATH, or of target/release
#   sudo SLUICEGATE=target/debug/sluicegate examples/fleet/without-a-store/run.sh
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [[ -n ${SLUICEGATE:-} ]]; then
  gateway=$SLUICEGATE
elif ! gateway=$(command -v sluicegate); then
  gateway=$here/../../../target/release/sluicegate
fi
if ! command -v "$gateway" >/dev/null; then
  echo "no sluicegate: \`cargo build --release\`, or set SLUICEGATE" >&2
  exit 1
fi
# The gateways start in another directory.
gateway=$(realpath "$(command -v "$gateway")")
((EUID == 0)) || { echo "namespaces need root: sudo $0" >&2; exit 1; }
for needed in ip curl awk; do
  command -v "$needed" >/dev/null || { echo "$needed is not installed" >&2; exit 1; }
done

dir=$(mktemp -d)
# The names of the namespaces: no other run has them.
own=sluicegate-$$
spaces=()

finish() {
  local status=$? at
  trap - EXIT
  # A signal that comes while this ends things would leave the rest of them running.
  trap '' INT TERM
  # The processes in the namespaces of this run, and no others.
  for at in "${spaces[@]}"; do ip netns pids "$at" | xargs -r kill 2>/dev/null || true; done
  wait
  # The links go with their namespaces.
  for at in "${spaces[@]}"; do ip netns delete "$at" || true; done
  if ((status != 0)); then
    tail -n 5 "$dir"/*.log >&2 || true
  fi
  rm -rf "$dir"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

space() {
  ip netns add "$1"
  spaces+=("$1")
}

# Runs a command in the namespace of a gateway.
at() {
  local number=$1
  shift
  ip netns exec "$own-gw-$number" "$@"
}

# Asks a gateway so many times, one after the other, with one key, and prints how many passed.
passed() {
  local number=$1 times=$2 key=$3
  at "$number" curl -s -o /dev/null -H "x-api-key: $key" -w '%{http_code}\n' "http://10.79.0.$number:8080/?[1-$times]" |
    awk '$1 == 200 { all++ } END { print all + 0 }'
}

# Asks a gateway ten times a second for so many seconds from a begin on, and writes a line for each answer: the second, the gateway,
# the status.
# curl writes them to its stderr, which it does not buffer.
load() {
  local number=$1 seconds=$2 begin=$3 status
  at "$number" curl -s -o /dev/null -H 'x-api-key: load' --rate 10/s -w '%{stderr}%{http_code}\n' \
    "http://10.79.0.$number:8080/?[1-$((seconds * 10))]" 2>&1 >/dev/null |
    while read -r status; do echo "$(((${EPOCHREALTIME/./} - begin) / 1000000)) $number $status"; done
}

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

# Whether a gateway knows of so many gateways, itself included.
knows() {
  at "$1" "$gateway" fleet status -c "$dir/gw-$1.toml" | grep -q "^gateways *$2$"
}

space "$own-net"
ip -n "$own-net" link add bridge type bridge
ip -n "$own-net" link set bridge up
(umask 077 && "$gateway" fleet key >"$dir/fleet.key")
for number in 1 2 3; do
  space "$own-gw-$number"
  ip -n "$own-net" link add "gw-$number" type veth peer name eth0 netns "$own-gw-$number"
  ip -n "$own-net" link set "gw-$number" master bridge up
  ip -n "$own-gw-$number" link set lo up
  ip -n "$own-gw-$number" address add "10.79.0.$number/24" dev eth0
  ip -n "$own-gw-$number" link set eth0 up
  cp "$here/gw-$number.toml" "$dir"
  "$gateway" check -c "$dir/gw-$number.toml" --gateways 3 >"$dir/check"
  at "$number" "$gateway" run -c "$dir/gw-$number.toml" >"$dir/gw-$number.log" 2>&1 &
done
echo "three gateways start, each in its own namespace; check says about their limit:"
sed -n 's/^limit /  /p' "$dir/check"
for number in 1 2 3; do await "gw-$number" knows "$number" 3; done

echo
echo "1. One limit of 4 a second, burst 4. One request at gw-1, two at gw-2, one at gw-3, and then one at each:"
echo "   passed: $(passed 1 1 one) $(passed 2 2 one) $(passed 3 1 one), and then: $(sleep 0.05; passed 1 1 one) $(passed 2 1 one) $(passed 3 1 one)"

echo
echo "2. All three are cut from each other, and each is asked six times at once. Each has the whole limit:"
# Not by the links of the gateways: a link that is down for less than a second may come up a second later.
ip -n "$own-net" link set bridge down
echo "   passed: $(passed 1 6 two) $(passed 2 6 two) $(passed 3 6 two)"
ip -n "$own-net" link set bridge up
begin=${EPOCHREALTIME/./}
until (($(passed 2 1 two))); do sleep 0.02; done
ends=${EPOCHREALTIME/./}
echo "   healed at once: 4 - 12 = -8, so nine tokens have to come back at 4/s, 2.25 s. The next one passed after $(((ends - begin) / 1000)) ms"

echo
echo "3. Each is asked ten times a second. After 3 s the link of gw-3 goes down, after 9 s it comes up. Passed, second by second:"
begin=${EPOCHREALTIME/./}
loads=()
for number in 1 2 3; do
  load "$number" 14 "$begin" >"$dir/load-$number" &
  loads+=($!)
done
sleep 3
ip -n "$own-net" link set gw-3 down
sleep 5
at 3 "$gateway" fleet status -c "$dir/gw-3.toml" >"$dir/cut"
sleep 1
ip -n "$own-net" link set gw-3 up
wait "${loads[@]}"
cat "$dir"/load-* | awk '
  $3 == 200 { passed[$1, $2]++; if ($1 > last) last = $1 }
  END {
    print "   second   gw-1 gw-2 gw-3   together"
    for (at = 0; at <= last; at++) {
      one = passed[at, 1] + 0; two = passed[at, 2] + 0; three = passed[at, 3] + 0
      note = at == 3 ? "   the link of gw-3 is down" : at == 9 ? "   its link is up: soon each is charged what the others spent" : ""
      printf "   %6d   %4d %4d %4d   %8d%s\n", at, one, two, three, one + two + three, note
    }
  }'
echo
echo "gw-3 during the cut (ip netns exec … sluicegate fleet status -c gw-3.toml):"
sed 's/^/   /' "$dir/cut"
echo
echo "and after it:"
at 3 "$gateway" fleet status -c "$dir/gw-3.toml" | sed 's/^/   /'
echo
echo "its log, shortened:"
sed -nE '/sluicegate::fleet/s/.*"ts":"([^"]*)".*"level":"([A-Z]*)","message":"([^"]*)"(,"gateway":"([^"]*)")?.*/   \1 \2 \5 \3/p' "$dir/gw-3.log"
