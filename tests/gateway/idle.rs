use crate::support::{Client, Gateway};

/// The cost of a connection while it is idle, at most, in bytes of resident memory.
const MOST: u64 = 2048;

#[test]
fn an_idle_connection_holds_no_buffers() {
    let gateway = Gateway::start(
        "[server]\nworkers = 1\n[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\n",
    );
    let open = |count: usize| -> Vec<Client> {
        let mut all = Vec::new();
        for _ in 0..count {
            let mut client = Client::connect(gateway.address());
            assert_eq!(client.get("/").status, 200);
            all.push(client);
        }
        all
    };
    let first = open(200);
    let before = gateway.resident();
    let others = open(3000);
    let each = gateway.resident().saturating_sub(before) / 3000;
    assert!(each <= MOST, "{each} bytes each");
    for client in first.into_iter().chain(others).take(300) {
        let mut client = client;
        assert_eq!(client.get("/").status, 200, "and it still works");
    }
}
