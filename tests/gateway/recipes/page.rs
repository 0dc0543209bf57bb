//! The page itself: what is a recipe, which of its blocks are files, and how one is run.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use sluicegate::config::{self, Certificates, Model};

use crate::support::{Gateway, eventually};

/// Read when it runs, so that who edits the page need not build the tests.
pub static PAGE: LazyLock<&str> =
    LazyLock::new(|| fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/recipes.md")).unwrap().leak());

/// The administration's address in the sections that go below any recipe.
const ADMIN: &str = "\"127.0.0.1:9900\"";

/// One of the page.
#[derive(Clone, Debug)]
pub struct Recipe {
    pub title: &'static str,
    pub configuration: &'static str,
    /// Those that stand beside it, by their names.
    pub files: BTreeMap<&'static str, &'static str>,
    /// Other whole configurations of it, by what stands between "`gateway.toml`, " and the colon above them.
    pub variants: BTreeMap<&'static str, &'static str>,
    /// Blocks that are no file.
    pub commands: Vec<&'static str>,
    prose: String,
}

impl Recipe {
    pub fn all() -> Vec<Self> {
        PAGE.split("\n## ").skip(1).map(Self::parse).collect()
    }

    /// The one with this heading.
    pub fn of(title: &str) -> Self {
        let found = Self::all().into_iter().find(|recipe| recipe.title == title);
        found.unwrap_or_else(|| panic!("no recipe is called {title}"))
    }

    fn parse(section: &'static str) -> Self {
        let (title, text) = section.split_once('\n').expect("a text below its heading");
        let (mut configuration, mut commands) = (None, Vec::new());
        let (mut files, mut variants) = (BTreeMap::new(), BTreeMap::new());
        let mut prose = String::new();
        for block in blocks(text) {
            prose.push_str(block.before);
            let before = block.before.trim_end().rsplit('\n').next().unwrap_or_default();
            let name = before.strip_prefix('`').and_then(|name| name.strip_suffix("`:"));
            let variant = before.strip_prefix("`gateway.toml`, ").and_then(|name| name.strip_suffix(':'));
            match (block.language, name) {
                ("toml", _) if variant.is_some() => drop(variants.insert(variant.unwrap_or_default(), block.text)),
                ("", None) => commands.push(block.text),
                ("toml", None) => {
                    assert!(configuration.replace(block.text).is_none(), "{title}: a second gateway.toml");
                }
                (_, Some(name)) => assert!(files.insert(name, block.text).is_none(), "{title}: {name} twice"),
                (language, None) => panic!("{title}: a block of {language} that no line names"),
            }
        }
        let prose = prose.split_whitespace().collect::<Vec<_>>().join(" ");
        let configuration = configuration.unwrap_or_else(|| panic!("{title}: no gateway.toml"));
        Self { title, configuration, files, variants, commands, prose }
    }

    /// It with the whole configuration that stands on the page as this variant.
    pub fn variant(&self, name: &str) -> Self {
        let configuration = self.variants.get(name).unwrap_or_else(|| panic!("{}: no variant {name}", self.title));
        Self { configuration, ..self.clone() }
    }

    /// The name of its test, or how that begins.
    pub fn test(&self) -> String {
        self.title.to_lowercase().replace([' ', '-'], "_")
    }

    /// That its text says this: a number that the test is about to see.
    pub fn says(&self, promise: &str) {
        assert!(self.prose.contains(promise), "{}: the text does not say \"{promise}\":\n{}", self.title, self.prose);
    }

    /// Its command that begins so, without the prompt.
    pub fn command(&self, start: &str) -> &'static str {
        let mut lines = self.commands.iter().flat_map(|block| block.lines());
        let line = lines.find_map(|line| line.strip_prefix("$ ").filter(|line| line.starts_with(start)));
        line.unwrap_or_else(|| panic!("{}: no command {start}", self.title))
    }

    /// Runs one of its commands in the gateway's directory, and waits until it holds.
    pub fn run(&self, gateway: &Gateway, start: &str) {
        let before = generation(gateway);
        let status =
            Command::new("sh").args(["-c", self.command(start)]).current_dir(gateway.directory.path()).status();
        assert!(status.unwrap().success());
        assert!(eventually(|| generation(gateway) == before + 1), "{}", gateway.log());
    }

    /// Its settings, for times too long to wait for.
    pub fn model(&self) -> Model {
        let directory = tempfile::tempdir().unwrap();
        self.write_files(directory.path());
        let file = directory.path().join("gateway.toml");
        let parsed = config::parse(self.configuration, &file, Certificates::Unread);
        parsed.unwrap_or_else(|errors| panic!("{}: {errors}", self.title)).model
    }

    pub fn write_files(&self, directory: &Path) {
        for (name, text) in &self.files {
            fs::write(directory.join(name), text).unwrap();
        }
    }

    /// Its gateway with these servers in the place of the page's own.
    pub fn start(&self, servers: &[(&str, SocketAddr)]) -> Gateway {
        self.start_with(servers, |_| {}, |configuration| configuration)
    }

    /// The same with files of the test's, and a configuration that the page tells to change.
    pub fn start_with(
        &self,
        servers: &[(&str, SocketAddr)],
        files: impl FnOnce(&Path),
        change: impl FnOnce(String) -> String,
    ) -> Gateway {
        let directory = tempfile::tempdir().unwrap();
        self.write_files(directory.path());
        files(directory.path());
        Gateway::start_in(directory, &change(self.on_ports_of(servers)))
    }

    /// The page's configuration and the sections for production, with nothing changed but addresses, each of which is
    /// there once.
    fn on_ports_of(&self, servers: &[(&str, SocketAddr)]) -> String {
        let whole = format!("{}\n{}", self.configuration, for_production());
        let mut whole = replace_once(&whole, ADMIN, "\"127.0.0.1:0\"");
        let listeners = self.model().listeners;
        assert_eq!(listeners.len(), 1, "{}: the listener is replaced", self.title);
        let listener = &listeners[0].address;
        whole = replace_once(&whole, &format!("[[listener]]\naddress = \"{listener}\""), LISTENER);
        let named = self.model().upstreams.iter().map(|upstream| upstream.servers.len()).sum::<usize>();
        assert_eq!(named, servers.len(), "{}: every server is replaced", self.title);
        for (of_the_page, address) in servers {
            whole = replace_once(&whole, &format!("\"{of_the_page}\""), &format!("\"{address}\""));
        }
        whole
    }
}

const LISTENER: &str = "[[listener]]\naddress = \"127.0.0.1:0\"";

pub fn replace_once(text: &str, old: &str, new: &str) -> String {
    assert_eq!(text.matches(old).count(), 1, "{old} in\n{text}");
    text.replacen(old, new, 1)
}

pub fn generation(gateway: &Gateway) -> u64 {
    gateway.ask_admin("/api/config").json()["generation"].as_u64().unwrap()
}

/// The block above the first recipe.
pub fn for_production() -> &'static str {
    let above = blocks(PAGE.split("\n## ").next().unwrap());
    let [block] = above.as_slice() else { panic!("one block above the recipes: {above:?}") };
    block.text
}

#[derive(Debug)]
struct Block {
    language: &'static str,
    text: &'static str,
    /// The text between it and the one above.
    before: &'static str,
}

fn blocks(text: &'static str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut parts = text.split("```");
    while let (Some(before), Some(block)) = (parts.next(), parts.next()) {
        let (language, text) = block.split_once('\n').expect("a block of lines");
        blocks.push(Block { language, text, before });
    }
    assert_eq!(text.matches("```").count(), 2 * blocks.len(), "a block that does not end");
    blocks
}
