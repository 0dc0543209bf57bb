//! The example of library use keeps what it asserts.

#[path = "../examples/embedded.rs"]
mod embedded;

#[test]
fn the_example_refuses_waits_and_bounds() {
    embedded::main().expect("the example runs");
}
