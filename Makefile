# Needs Rust 1.90 or later, a C linker and make; on Debian: apt-get install -y build-essential
.PHONY: all run test test-long bench doc check

all: target/release/sluicegate

target/release/sluicegate: FORCE
	cargo build --release --locked
FORCE:

# The gateway on the repository's gateway.toml.
run:
	cargo run --release --locked

# Every test: unit, property, architecture, documentation, and the gateway over real sockets. They need nothing else.
test:
	cargo test --locked

# What takes longer: more cases for the property tests, 20 s of load with a reload every 200 ms.
test-long:
	PROPTEST_CASES=5000 SLUICEGATE_LONG=1 cargo test --release --locked

bench:
	cargo bench --locked

doc:
	cargo doc --no-deps --locked

check:
	cargo fmt --check
	cargo clippy --all-targets --locked -- -D warnings
