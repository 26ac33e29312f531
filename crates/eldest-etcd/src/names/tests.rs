use super::*;

fn endpoints(urls: &[&str]) -> Vec<Endpoint> {
    urls.iter().map(Endpoint::from).collect()
}

#[test]
fn found_endpoints_are_listed_once_with_the_data_center_of_their_name() {
    let mut host = Name::of(Endpoint::new("dns+http://etcd.test").data_center("eu"));
    let (one, other) = ("http://10.0.0.1", "http://10.0.0.2");
    host.answered(Ok(endpoints(&[one, other])));
    let mut records = Name::of(Endpoint::new("srv://test"));
    let unknown = records.clone();
    records.answered(Ok(endpoints(&[other, "http://10.0.0.3"])));
    let expected = [
        Endpoint::new(one).data_center("eu"),
        Endpoint::new(other).data_center("eu"),
        Endpoint::new("http://10.0.0.3"),
    ];
    let names = [host.clone(), records.clone()];
    assert_eq!(list(&names), expected);
    // A failure keeps the former result, and reports the cause.
    records.answered(Err("refused".to_owned()));
    assert_eq!(
        records.failure(),
        Some(("srv://test".to_owned(), "refused".to_owned()))
    );
    assert_eq!(list(&[host, records]), expected);
    assert_eq!(list(&[unknown]), endpoints(&["srv://test"]));
}

#[test]
fn a_trouble_is_reported_once_and_again_after_a_round_without_it() {
    let mut named = Named::new(Vec::new());
    let trouble = |why: &str| Trouble::Members {
        why: why.to_owned(),
    };
    let (a, b) = (trouble("a"), trouble("b"));
    for (round, reported) in [
        (vec![&a], vec![&a]),
        (vec![&a], vec![]),
        (vec![&a, &b], vec![&b]),
        (vec![&b], vec![]),
        (vec![&a], vec![&a]),
    ] {
        let new = named.new_troubles(round.into_iter().cloned().collect());
        assert_eq!(new.iter().collect::<Vec<_>>(), reported);
    }
}
