//! Bandwidth in every mix: how long messages take that are paced, to the burst and the byte, and who else waits for them.

use std::thread;
use std::time::{Duration, Instant};

use super::peers::{Ask, Asker, Http, Mix, Origin, Told, in_every_mix, open_h2, request_of, runtime, soon};
use crate::support::{Gateway, alone, eventually};
use crate::timing::{assert_below, assert_lasted, best_of_three};

in_every_mix! {
    a_download_takes_as_long_as_its_bandwidth_has_it
    an_upload_takes_as_long_as_its_bandwidth_has_it
    small_messages_add_up
    no_timeout_of_bodies_rings_for_what_is_paced
    others_of_the_same_connection_do_not_wait
    two_downloads_of_one_key_share_its_rate
    two_fast_downloads_share_too
    a_reload_holds_for_what_is_on_its_way
    keys_do_not_share
    what_is_held_back_is_not_kept_here
}

const KIB: usize = 1024;

/// Answers `/NUMBER` and `/free/NUMBER` with that many bytes, and everything else with how many came.
fn origin(mix: Mix) -> Origin {
    Origin::start(mix.server, |request| {
        match request.target().trim_start_matches("/free").trim_start_matches('/').parse() {
            Ok(size) => Told::ok(vec![b'd'; size]),
            Err(_) => Told::ok(request.body.len().to_string()),
        }
    })
}

/// A route `/free` without bandwidth beside the one for all, which has this.
fn gateway(mix: Mix, origin: &Origin, server: &str, bandwidth: &str) -> Gateway {
    let rules = mix.rules(
        origin.address,
        &format!("bandwidth = {bandwidth}"),
        "[[route]]\nname = \"free\"\npath = \"/free\"\nupstream = \"app\"\n",
    );
    Gateway::start(&rules.replace("[server]\n", &format!("[server]\n{server}\n")))
}

/// `kib` were paid for at so many KiB a second, and not before.
fn assert_paid(took: Duration, kib: usize, rate: usize, what: &str) {
    let exact = Duration::from_micros((kib * 1_000_000 / rate) as u64);
    assert_lasted(took + Duration::from_millis(2), exact..most_paid(exact), what);
}

/// The most that it may take where the machine has time.
fn most_paid(exact: Duration) -> Duration {
    exact + exact / 10 + Duration::from_millis(60)
}

fn a_download_takes_as_long_as_its_bandwidth_has_it(mix: Mix) {
    best_of_three(|| {
        let origin = origin(mix);
        let gateway = gateway(mix, &origin, "", "{ rate = \"1MiB/s\", burst = \"100KiB\" }");
        let mut asker = mix.asker(&gateway);
        let started = Instant::now();
        assert_eq!(asker.get(&format!("/{}", 100 * KIB)).body.len(), 100 * KIB);
        assert_below(started.elapsed(), Duration::from_millis(80), "a burst, which does not wait,");
        // The part of the burst that has come back by now is below the tolerance of what follows.
        let started = Instant::now();
        assert_eq!(asker.get(&format!("/{}", 700 * KIB)).body.len(), 700 * KIB);
        assert_paid(started.elapsed() + Duration::from_millis(25), 700, 1024, "700 KiB");
        let labels = ["bandwidth=\"route:all\"", "direction=\"down\""];
        assert!((gateway.metric("sluicegate_bandwidth_bytes_total", &labels) - 800.0 * 1024.0).abs() < 0.5);
        assert!(gateway.metric("sluicegate_bandwidth_waits_total", &labels) > 10.0);
        assert!((gateway.metric("sluicegate_bandwidth_keys", &labels) - 1.0).abs() < 0.5);
        let up = ["bandwidth=\"route:all\"", "direction=\"up\""];
        assert!(gateway.metric("sluicegate_bandwidth_bytes_total", &up) < 0.5, "each direction for itself");
    });
}

fn an_upload_takes_as_long_as_its_bandwidth_has_it(mix: Mix) {
    best_of_three(|| {
        let origin = origin(mix);
        let gateway = gateway(mix, &origin, "", "{ rate = \"1MiB/s\", burst = \"64KiB\", direction = \"up\" }");
        let mut asker = mix.asker(&gateway);
        let started = Instant::now();
        assert_eq!(asker.ask(&Ask::post("/up", vec![b'u'; 664 * KIB])).text(), (664 * KIB).to_string());
        assert_paid(started.elapsed(), 600, 1024, "600 KiB");
        // The way down is free.
        let started = Instant::now();
        assert_eq!(asker.get(&format!("/{}", 664 * KIB)).body.len(), 664 * KIB);
        assert_below(started.elapsed(), Duration::from_millis(150), "the way down");
    });
}

/// Each fits into one read: nobody gets round a bandwidth by asking often.
fn small_messages_add_up(mix: Mix) {
    best_of_three(|| {
        let origin = origin(mix);
        let gateway = gateway(mix, &origin, "", "{ rate = \"512KiB/s\", burst = \"16KiB\" }");
        let mut asker = mix.asker(&gateway);
        let mut assert_forty = |ask: &dyn Fn(&str) -> Ask, answer: &[u8], what: &str| {
            let mut forty = |prefix: &str| {
                let started = Instant::now();
                for _ in 0..40 {
                    assert_eq!(asker.ask(&ask(prefix)).body, answer);
                }
                started.elapsed()
            };
            // As many that nobody holds up: the bucket is full, and time lost, while the machine is busy for longer than the
            // burst lasts, 31 ms.
            let (free, took) = (forty("/free"), forty(""));
            let exact = Duration::from_micros(144 * 1_000_000 / 512);
            assert_lasted(took + Duration::from_millis(2), exact..most_paid(exact) + free, what);
        };
        assert_forty(&|prefix| Ask::get(&format!("{prefix}/{}", 4 * KIB)), &[b'd'; 4 * KIB], "40 downloads");
        assert_forty(&|prefix| Ask::post(&format!("{prefix}/up"), vec![b'u'; 4 * KIB]), b"4096", "40 uploads");
    });
}

fn no_timeout_of_bodies_rings_for_what_is_paced(mix: Mix) {
    best_of_three(|| {
        let origin = origin(mix);
        // Each piece waits for about two thirds of a second.
        let bandwidth = "{ rate = \"24KiB/s\", burst = \"1KiB\" }";
        let gateway = gateway(mix, &origin, "body_timeout = \"250ms\"", bandwidth);
        let mut asker = mix.asker(&gateway);
        let started = Instant::now();
        assert_eq!(asker.get(&format!("/{}", 37 * KIB)).body.len(), 37 * KIB);
        assert_paid(started.elapsed(), 36, 24, "a slow download");
        let started = Instant::now();
        assert_eq!(asker.ask(&Ask::post("/up", vec![b'u'; 37 * KIB])).text(), (37 * KIB).to_string());
        assert_paid(started.elapsed(), 36, 24, "a slow upload");
    });
}

fn others_of_the_same_connection_do_not_wait(mix: Mix) {
    best_of_three(|| {
        if mix.client == Http::One {
            return;
        }
        let origin = origin(mix);
        let gateway = gateway(mix, &origin, "", "{ rate = \"256KiB/s\", burst = \"16KiB\" }");
        runtime().block_on(async {
            let mut client = open_h2(gateway.address()).await;
            let (down, _) = client.send_request(request_of(&Ask::get(&format!("/{}", 200 * KIB))), true).unwrap();
            let (up, mut send) = client.send_request(request_of(&Ask::post("/up", vec![0; 200 * KIB])), false).unwrap();
            send.send_data(vec![b'u'; 200 * KIB].into(), true).unwrap();
            tokio::time::sleep(Duration::from_millis(100)).await;
            let started = Instant::now();
            for _ in 0..10 {
                let ask = Ask::post("/free", vec![b'f'; 60 * KIB]);
                let (answer, mut send) =
                    client.clone().ready().await.unwrap().send_request(request_of(&ask), false).unwrap();
                send.send_data(vec![b'f'; 60 * KIB].into(), true).unwrap();
                let mut body = soon(answer).await.unwrap().into_body();
                assert_eq!(soon(body.data()).await.unwrap().unwrap(), (60 * KIB).to_string());
            }
            assert_below(started.elapsed(), Duration::from_millis(300), "ten others");
            let mut body = soon(down).await.unwrap().into_body();
            let mut came = 0;
            while let Some(data) = soon(body.data()).await {
                came += data.as_ref().unwrap().len();
                body.flow_control().release_capacity(data.unwrap().len()).unwrap();
            }
            assert_eq!((came, soon(up).await.unwrap().status().as_u16()), (200 * KIB, 200));
        });
    });
}

fn two_downloads_of_one_key_share_its_rate(mix: Mix) {
    share(mix, "{ rate = \"2MiB/s\", burst = \"64KiB\" }", 544 * KIB, 1024, 2048);
}

/// Many pieces go in a millisecond, which is what timers are of: so whoever is woken first goes on for one piece only. It
/// takes most of a core to be in time for so many bytes, so nothing else runs meanwhile.
fn two_fast_downloads_share_too(mix: Mix) {
    let _alone = alone();
    share(mix, "{ rate = \"64MiB/s\", burst = \"1MiB\" }", 16_896 * KIB, 32_768, 65_536);
}

/// Two downloads of `each` bytes, of which so many KiB together are paid for.
fn share(mix: Mix, bandwidth: &str, each: usize, kib: usize, rate: usize) {
    best_of_three(|| {
        let origin = origin(mix);
        let gateway = gateway(mix, &origin, "", bandwidth);
        let both = |prefix: &str| -> [Duration; 2] {
            let started = Instant::now();
            let one = || {
                assert_eq!(mix.asker(&gateway).get(&format!("{prefix}/{each}")).body.len(), each);
                started.elapsed()
            };
            thread::scope(|scope| [(); 2].map(|()| scope.spawn(one)).map(|download| download.join().unwrap()))
        };
        // The time that the machine needs for as many bytes that nobody holds up comes on top: while it is busy with others for
        // longer than the burst lasts, 16 ms at 64 MiB a second, the bucket is full and time is lost.
        let free = both("/free").into_iter().max().unwrap();
        let took = both("");
        let (first, last) = (took[0].min(took[1]), took[0].max(took[1]));
        eprintln!("{first:?} and {last:?}, free {free:?}");
        let exact = Duration::from_micros((kib * 1_000_000 / rate) as u64);
        assert_lasted(last + Duration::from_millis(2), exact..most_paid(exact) + free, "both");
        // Of the last one: the first ends no sooner than four fifths of its time.
        assert_below(last.mul_f64(0.8), first, "four fifths of the last");
    });
}

fn a_reload_holds_for_what_is_on_its_way(mix: Mix) {
    best_of_three(|| {
        let origin = origin(mix);
        let slow = "{ rate = \"64KiB/s\", burst = \"16KiB\" }";
        let gateway = gateway(mix, &origin, "", slow);
        let started = Instant::now();
        thread::scope(|scope| {
            let download = scope.spawn(|| mix.asker(&gateway).get(&format!("/{}", 1024 * KIB)).body.len());
            thread::sleep(Duration::from_millis(300));
            let text = std::fs::read_to_string(gateway.file()).unwrap();
            std::fs::write(gateway.file(), text.replace("64KiB/s", "10MiB/s").replace("16KiB", "1MiB")).unwrap();
            assert_eq!(gateway.ask_reload().status, 200);
            assert_eq!(download.join().unwrap(), 1024 * KIB);
        });
        let took = started.elapsed();
        assert_lasted(took, Duration::from_millis(250)..Duration::from_millis(1500), "what would have been 16 s");
    });
}

fn keys_do_not_share(mix: Mix) {
    best_of_three(|| {
        let origin = origin(mix);
        let gateway = gateway(mix, &origin, "", "{ rate = \"512KiB/s\", burst = \"128KiB\", key = \"header:x-key\" }");
        let ask = |key| Ask::get(&format!("/{}", 256 * KIB)).with(&[("x-key", key)]);
        let took = |ask: Ask| {
            let started = Instant::now();
            assert_eq!(mix.asker(&gateway).ask(&ask).body.len(), 256 * KIB);
            started.elapsed()
        };
        thread::scope(|scope| {
            let keyed: Vec<_> = ["a", "b"].map(|key| scope.spawn(move || took(ask(key)))).into();
            for one in keyed {
                assert_paid(one.join().unwrap(), 128, 512, "each");
            }
        });
        // A client without a key is counted by its address.
        assert_paid(took(Ask::get(&format!("/{}", 256 * KIB))), 128, 512, "keyless");
    });
}

fn what_is_held_back_is_not_kept_here(mix: Mix) {
    let origin = origin(mix);
    let gateway = gateway(mix, &origin, "", "{ rate = \"256KiB/s\", burst = \"64KiB\" }");
    let before = gateway.resident();
    let askers: Vec<_> = (0..8)
        .map(|_| {
            let address = gateway.address();
            thread::spawn(move || drop(Asker::open(mix.client, address).attempt(&Ask::get(&format!("/{}", 32 << 20)))))
        })
        .collect();
    let labels = ["direction=\"down\""];
    assert!(eventually(|| gateway.metric("sluicegate_bandwidth_bytes_total", &labels) > 200_000.0));
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 8 << 20, "grew by {grown} bytes");
    drop(gateway);
    for asker in askers {
        asker.join().unwrap();
    }
}
