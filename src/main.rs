//! The binary: everything is in the library.

fn main() -> std::process::ExitCode {
    sluicegate::cli::main()
}
