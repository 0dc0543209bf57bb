//! `docs/recipes.md`: each recipe is run as it stands there, on ports of the test's, and does what its text says.

mod access;
mod caller;
mod changes;
mod load;
mod page;

use std::fs;

use crate::support::run;
use crate::tls::peer::Authority;

use page::{PAGE, Recipe, for_production};

const TESTS: [&str; 3] = [include_str!("access.rs"), include_str!("changes.rs"), include_str!("load.rs")];

#[test]
fn every_recipe_has_a_test_and_every_test_a_recipe() {
    let recipes = Recipe::all();
    let titles: Vec<&str> = recipes.iter().map(|recipe| recipe.title).collect();
    let links = PAGE.lines().filter_map(|line| line.strip_prefix("| ["));
    let linked: Vec<(&str, &str)> = links.filter_map(|line| line.split_once("](#")).collect();
    assert_eq!(linked.iter().map(|(title, _)| *title).collect::<Vec<_>>(), titles, "the table names them in order");
    for (title, rest) in linked {
        assert!(rest.starts_with(&format!("{}) |", title.to_lowercase().replace(' ', "-"))), "{title}: {rest}");
    }
    for recipe in &recipes {
        let used = format!("Recipe::of(\"{}\")", recipe.title);
        let test = format!("#[test]\nfn {}() {{\n    let recipe = {used};\n", recipe.test());
        assert!(TESTS.iter().any(|text| text.contains(&test)), "{}: no test begins with\n{test}", recipe.title);
        for variant in recipe.variants.keys() {
            let used = format!(".variant(\"{variant}\")");
            assert!(TESTS.iter().any(|text| text.contains(&used)), "{}: no test has {used}", recipe.title);
        }
    }
    let tests = TESTS.iter().flat_map(|text| text.split("#[test]\nfn ").skip(1));
    for test in tests {
        let name = test.split('(').next().unwrap();
        assert!(recipes.iter().any(|recipe| name.starts_with(&recipe.test())), "{name} is of no recipe");
    }
}

#[test]
fn check_finds_nothing_in_any_as_it_stands() {
    let (server, staff) = (Authority::new("server"), Authority::new("our staff"));
    let recipes = Recipe::all();
    let variants = recipes.iter().flat_map(|recipe| recipe.variants.keys().map(|name| recipe.variant(name)));
    for recipe in variants.chain(recipes.clone()) {
        for more in ["", for_production()] {
            let directory = tempfile::tempdir().unwrap();
            fs::write(directory.path().join("gateway.toml"), format!("{}\n{more}", recipe.configuration)).unwrap();
            recipe.write_files(directory.path());
            if recipe.title == "Inside and outside" {
                server.server(&["localhost"]).write(directory.path(), "server");
                fs::write(directory.path().join("staff-ca.pem"), &staff.pem).unwrap();
            }
            let (status, said, found) = run(&["check", "-c", "gateway.toml"], directory.path());
            assert!(status.success() && found.is_empty(), "{}:\n{found}", recipe.title);
            assert!(said.starts_with("gateway.toml: ok ("), "{said}");
        }
    }
}

#[test]
fn every_file_that_stands_on_the_page_is_named_by_its_configuration() {
    for recipe in Recipe::all() {
        for name in recipe.files.keys() {
            assert!(recipe.configuration.contains(&format!("\"{name}\"")), "{}: {name}", recipe.title);
        }
    }
}
