//! `sluicegate man`: manual pages, from the words that `--help` shows.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

pub const EXAMPLES: &str = "Examples:
  sluicegate man | man -l -                   read the main page
  sluicegate man --into /usr/local/share/man/man1";

/// Arguments of `man`.
#[derive(Debug, clap::Args)]
pub struct ManArguments {
    /// Write the page of every command into this directory, which is made if it is missing.
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

/// Prints the main page, or writes all of them.
pub fn run(command: clap::Command, arguments: &ManArguments) -> ExitCode {
    let done = match &arguments.into {
        Some(directory) => write_all(command, directory),
        None => io::stdout().write_all(&page(&whole(command)).1),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let place = arguments.into.as_deref().unwrap_or(Path::new("standard output")).display();
            eprintln!("sluicegate: {place}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write_all(command: clap::Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    pages(&whole(command)).into_iter().try_for_each(|(name, text)| fs::write(directory.join(name), text))
}

/// With what subcommands inherit. `help` as a command has no page: it says what the pages say.
fn whole(command: clap::Command) -> clap::Command {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    command
}

/// The page of a command and those of its subcommands, each with the name of its file.
fn pages(command: &clap::Command) -> Vec<(String, Vec<u8>)> {
    let shown = command.get_subcommands().filter(|one| !one.is_hide_set());
    std::iter::once(page(command)).chain(shown.flat_map(pages)).collect()
}

fn page(command: &clap::Command) -> (String, Vec<u8>) {
    let man = Man::new(command.clone()).manual("Sluicegate");
    let mut text = Vec::new();
    render(&man, command, &mut text).expect("a buffer takes what is written");
    (man.get_filename(), text)
}

/// As `Man::render`, but that puts the examples under "EXTRA", and joins their lines.
fn render(man: &Man, command: &clap::Command, to: &mut Vec<u8>) -> io::Result<()> {
    man.render_title(to)?;
    man.render_name_section(to)?;
    man.render_synopsis_section(to)?;
    man.render_description_section(to)?;
    man.render_options_section(to)?;
    if command.get_subcommands().any(|one| !one.is_hide_set()) {
        man.render_subcommands_section(to)?;
    }
    if let Some(examples) = command.get_after_help() {
        let mut roff = Roff::new();
        roff.control("SH", ["EXAMPLES"]).control("nf", []);
        for line in examples.to_string().lines().filter(|line| !matches!(*line, "Example:" | "Examples:")) {
            roff.text([roman(line)]);
        }
        roff.control("fi", []).to_writer(to)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Arguments;

    #[test]
    fn the_main_page_names_every_command() {
        let command = whole(Arguments::command());
        let (name, text) = page(&command);
        let text = String::from_utf8(text).unwrap();
        assert_eq!(name, "sluicegate.1");
        assert!(text.contains(".TH sluicegate 1"), "{text}");
        assert!(text.contains("\n.SH EXAMPLES\n.nf\n"), "{text}");
        for command in command.get_subcommands() {
            // A hyphen that is to stay one is escaped.
            let named = format!("sluicegate\\-{}(1)", command.get_name().replace('-', "\\-"));
            assert!(text.contains(&named), "{named}: {text}");
        }
    }

    #[test]
    fn every_command_has_a_page_and_the_pages_name_no_other() {
        let all = pages(&whole(Arguments::command()));
        let names: Vec<_> = all.iter().map(|(name, _)| name.as_str()).collect();
        assert!(names.contains(&"sluicegate-run.1") && names.contains(&"sluicegate-dead-letters-ls.1"), "{names:?}");
        for (page, text) in &all {
            let text = String::from_utf8_lossy(text).replace('\\', "");
            for named in text.split_whitespace().filter_map(|word| word.strip_suffix("(1)")) {
                assert!(names.contains(&&*format!("{named}.1")), "{page} names {named}");
            }
        }
    }

    #[test]
    fn pages_are_written_into_a_directory_that_was_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("share/man1");
        write_all(Arguments::command(), &inside).unwrap();
        assert_eq!(fs::read_dir(&inside).unwrap().count(), pages(&whole(Arguments::command())).len());
    }
}
