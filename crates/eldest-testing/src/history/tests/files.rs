//! Tests histories in files, and the stamps of events.

use super::*;

/// Returns one event of every kind.
fn every_kind() -> Vec<Event> {
    let mut events = vec![
        on(1, "a", joined(5)),
        on(2, "a", What::Left),
        on(3, "a", elected(5)),
        on(4, "a", valid(5)),
        on(5, "a", invalid(5)),
        on(6, "a", What::Guarded { token: 5 }),
        on(7, "a \"q\"\n\u{e9}", What::Released { token: i64::MAX }),
        on(8, "a", What::Paused),
        on(9, "a", What::Resumed),
        on(10, "a", What::Killed),
        on(11, "", fault("cut")),
        on(12, "", healed("cut")),
        on(13, "a", wrote(5, u64::MAX)),
        on(14, "a", What::FinalCounter { value: 3 }),
        on(15, "a", What::AskedToDelete { create_revision: 5 }),
        on(16, "a", What::DeletedByOther { create_revision: 5 }),
        on(17, "a", What::Baseline(Resources::default())),
        on(
            18,
            "a",
            What::Final(Resources {
                leases: 1,
                keys: 2,
                watchers: 3,
                tasks: 4,
                threads: 5,
                fds: 6,
            }),
        ),
        created(19, 5),
        deleted(20, 6, 5),
        lease(21, 105, Some(1500)),
        lease(22, -105, None),
        truth(23, 9, Change::Gap { since: 7 }),
        truth(23, 9, Change::Current),
    ];
    for outcome in [Outcome::Sent, Outcome::Refused, Outcome::Unknown] {
        events.push(on(24, "a", What::FencedWrite { token: 5, outcome }));
    }
    let reason = "LeaseLost".to_owned();
    events.push(on(25, "a", What::LostToken { token: 5, reason }));
    let change = Change::Overwritten {
        key: "k\\xff".into(),
        create_revision: 5,
        lease: 0,
    };
    events.push(truth(26, 9, change));
    events.push(on(27, "agent", What::ReleasedByGuard { lease: 105 }));
    events.push(on(28, "b", What::Condemned { lease: 107 }));
    events
}

#[test]
fn every_kind_of_event_survives_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let history = History::new(every_kind());
    history.save(&path).unwrap();
    assert_eq!(History::load([path]).unwrap(), history);
}

#[test]
fn a_line_of_a_file_is_an_event() {
    for event in every_kind() {
        let line = json::line(&event).unwrap();
        assert_eq!(line.parse::<Event>().unwrap(), event);
        let broken_off = line.trim_end_matches("}\n");
        assert!(broken_off.parse::<Event>().is_err());
    }
    assert!("{}".parse::<Event>().is_err());
}

#[test]
fn files_of_several_processes_merge_by_time() {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["a", "b"].map(|name| folder.path().join(name));
    let recorders = paths
        .each_ref()
        .map(|path| Recorder::with_clock(|| ms(7)).to_file(path).unwrap());
    for (index, event) in every_kind().into_iter().rev().enumerate() {
        recorders[index % 2].record_at(event.at, event.node, event.election, event.what);
    }
    let merged = History::load(&paths).unwrap();
    let times: Vec<Duration> = merged.events().iter().map(|event| event.at).collect();
    assert!(times.is_sorted());
    assert_eq!(merged.events().len(), every_kind().len());
    assert_eq!(
        recorders[0].history().unwrap().events().len(),
        every_kind().len().div_ceil(2)
    );
}

#[test]
fn line_cut_off_by_a_kill_is_skipped_and_the_next_process_appends() {
    use std::io::Write as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.jsonl");
    let record = |node: &str| {
        let recorder = Recorder::boottime().to_file(&path).unwrap();
        recorder.record(node, "jobs", What::Left);
    };
    record("first");
    let mut file = std::fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .unwrap();
    file.write_all(br#"{"at":12,"node":"bro"#).unwrap();
    record("second");
    let history = History::load([&path]).unwrap();
    let nodes: Vec<&str> = history.events().iter().map(|e| e.node.as_str()).collect();
    assert_eq!(nodes, ["first", "second"]);

    file.write_all(b"{\"at\":12}\n").unwrap();
    let error = History::load([&path]).unwrap_err().to_string();
    assert!(
        error.ends_with("a.jsonl:4: no event that this version knows"),
        "{error}"
    );
}

#[test]
fn a_sample_is_stamped_before_a_yes_and_after_a_no() {
    let clock = std::sync::atomic::AtomicU64::new(0);
    let recorder =
        Recorder::with_clock(move || ms(clock.fetch_add(1, std::sync::atomic::Ordering::Relaxed)));
    let during = recorder.clone();
    assert!(recorder.sample("a", "jobs", 5, || during.now() == ms(1)));
    assert!(!recorder.sample("a", "jobs", 5, || during.now() == ms(0)));
    let history = recorder.history().unwrap();
    assert_eq!(
        history.events(),
        [on(0, "a", valid(5)), on(4, "a", invalid(5))]
    );
}
