//! The settings by which the running gateway is found, also while its file is being mended.

use std::path::{Path, PathBuf};
use std::sync::Once;

use crate::config::{self, Certificates, KnownPlans, ListenAddress, Model};
use crate::rules::History;

/// A file with only the sections that tell where the gateway is needs these to be one.
const REST: &str = "\n[[listener]]\naddress = \"127.0.0.1:1\"\n[[route]]\nname = \"all\"\nrespond = {}\n";

/// The configuration by which the gateway that runs on a file is found: the file itself. Where that cannot be used, `[admin]` and
/// `[server]` of it, without the rest.
///
/// The last text that held, which the history has, may be of long ago, or of another user's gateway: by it alone a change, and
/// a token, could go to another gateway. It only has a say against the file.
///
/// # Errors
/// The sections cannot be used, or the last text that held names another place: the report of the file.
pub fn model(path: &Path) -> Result<Model, String> {
    let error = match config::load(path, Certificates::Unread) {
        Ok(loaded) => return Ok(loaded.model),
        Err(error) => error,
    };
    let shown = path.display();
    let found = own_sections(path).ok_or_else(|| error.to_string())?;
    if last_that_held(path).is_some_and(|last| place(&last) != place(&found)) {
        return Err(format!(
            "{error}\n{shown} cannot be used, and its [admin] and [server] differ from those of the last text that held: say where \
             admin is, --admin URL|SOCKET"
        ));
    }
    // A command that looks again and again says it once.
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        eprintln!(
            "sluicegate: {shown} cannot be used, `sluicegate check -c {shown}` says why; the running gateway is asked where its [admin] \
             and [server] say"
        );
    });
    Ok(found)
}

/// Where the gateway is found by a configuration.
fn place(model: &Model) -> (Option<&ListenAddress>, Option<&PathBuf>) {
    (model.admin.as_ref().map(|admin| &admin.address), model.server.pid_file.as_ref())
}

fn last_that_held(path: &Path) -> Option<Model> {
    let (history, _) = History::open(path).ok()?;
    let text = history.text(history.latest()?.generation).ok()?;
    parse(text, path)
}

fn own_sections(path: &Path) -> Option<Model> {
    let text = config::read_text(path).ok()?;
    let mut is_wanted = false;
    let lines = text.lines().filter(|line| {
        if let Some(header) = line.trim_start().strip_prefix('[') {
            let name = header.trim_start_matches(['[', ' ', '\t']);
            let name = name.split([']', '.', ' ', '\t']).next();
            is_wanted = matches!(name, Some("admin" | "server"));
        }
        is_wanted
    });
    let text = lines.fold(String::new(), |text, line| text + line + "\n");
    parse(text + REST, path).filter(|model| model.admin.is_some() || model.server.pid_file.is_some())
}

fn parse(text: String, path: &Path) -> Option<Model> {
    config::load_text(text, path, Certificates::Unread, &KnownPlans::default()).ok().map(|loaded| loaded.model)
}
