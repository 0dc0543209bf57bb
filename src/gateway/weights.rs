//! The weights that an operator has given to servers, in place of the file's.

use std::collections::HashMap;
use std::sync::Arc;

use crate::config::Model;

/// By upstream and server. One holds until the file gives the server another weight than it had then, or has it no more.
#[derive(Clone, Default)]
pub struct Weights(HashMap<(Arc<str>, String), Given>);

#[derive(Clone, Copy)]
struct Given {
    weight: u32,
    of_file: u32,
}

impl Weights {
    /// The weight of a server to which the file gives `of_file`.
    pub fn of(&self, upstream: &str, server: &str, of_file: u32) -> u32 {
        let given = self.0.get(&(upstream.into(), server.to_owned()));
        given.filter(|given| given.of_file == of_file).map_or(of_file, |given| given.weight)
    }

    /// Gives a server of a model a weight; that of the file takes the other one away.
    pub fn set(&mut self, model: &Model, upstream: &str, server: &str, weight: u32) {
        for (name, address, of_file) in servers(model) {
            if **name == *upstream && address == server {
                let key = (Arc::clone(name), address);
                if weight == of_file {
                    self.0.remove(&key);
                } else {
                    self.0.insert(key, Given { weight, of_file });
                }
            }
        }
    }

    /// Forgets those that do not hold any more.
    pub fn retain(&mut self, model: &Model) {
        let known: HashMap<_, _> =
            servers(model).map(|(name, server, weight)| ((Arc::clone(name), server), weight)).collect();
        self.0.retain(|key, given| known.get(key) == Some(&given.of_file));
    }
}

fn servers(model: &Model) -> impl Iterator<Item = (&Arc<str>, String, u32)> {
    model.upstreams.iter().flat_map(|upstream| {
        upstream.servers.iter().map(move |server| (&upstream.name, server.address.to_string(), server.weight))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{self, Certificates};

    fn model(servers: &str) -> Model {
        let text = format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\n[[upstream]]\nname = \"app\"\nservers = [{servers}]\n\
             [[route]]\nname = \"all\"\nupstream = \"app\"\n"
        );
        config::parse(&text, std::path::Path::new("gateway.toml"), Certificates::Unread).unwrap().model
    }

    #[test]
    fn a_weight_holds_until_the_file_gives_another_one() {
        let mut weights = Weights::default();
        let first = model("{ address = \"127.0.0.1:1\", weight = 4 }, \"127.0.0.1:2\"");
        weights.set(&first, "app", "127.0.0.1:1", 9);
        weights.set(&first, "app", "127.0.0.1:3", 9);
        let of = |weights: &Weights, of_file| weights.of("app", "127.0.0.1:1", of_file);
        assert_eq!((of(&weights, 4), of(&weights, 5), weights.of("app", "127.0.0.1:2", 1)), (9, 5, 1));
        weights.retain(&first);
        assert_eq!(of(&weights, 4), 9);
        weights.retain(&model("{ address = \"127.0.0.1:1\", weight = 5 }"));
        assert_eq!(of(&weights, 4), 4, "the file has spoken");
    }
}
