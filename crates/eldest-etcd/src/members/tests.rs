use super::*;

fn member(name: &str, urls: &[&str]) -> EtcdMember {
    EtcdMember {
        id: 1,
        name: name.to_owned(),
        client_urls: urls.iter().map(ToString::to_string).collect(),
        learner: false,
    }
}

/// Returns the used endpoints, and why others are not used.
fn of(members: &[EtcdMember], named: &[Endpoint]) -> Usable {
    usable(members, named, &[], &Access::default())
}

fn urls(usable: &Usable) -> Vec<&str> {
    usable.endpoints.iter().map(|one| &*one.url).collect()
}

#[test]
fn each_member_is_used_by_one_url_a_known_one_first() {
    let named = [Endpoint::new("http://10.1.0.1:2379").data_center("eu")];
    let members = [
        member("a", &["http://10.0.0.1:2379", "http://10.1.0.1:2379"]),
        member("b", &["http://10.0.0.2:2379/", "http://10.1.0.2:2379"]),
    ];
    let found = of(&members, &named);
    let new = Endpoint::new("http://10.0.0.2:2379");
    assert_eq!(found.endpoints, [named[0].clone(), new.clone()]);
    assert_eq!((found.refused.len(), found.changing), (0, false));
    // An endpoint in use is a known one as well.
    let in_use = [Endpoint {
        server_name: Some("etcd.example".to_owned()),
        ..new
    }];
    let found = usable(&members[1..], &named, &in_use, &Access::default());
    assert_eq!(found.endpoints, in_use);
}

#[test]
fn members_that_have_not_started_and_learners_are_awaited() {
    let learner = EtcdMember {
        learner: true,
        ..member("b", &["http://10.0.0.2:2379"])
    };
    let named = [Endpoint::new("http://10.0.0.1:2379")];
    let a = member("a", &["http://10.0.0.1:2379"]);
    for other in [member("", &[]), learner] {
        let found = of(&[a.clone(), other], &named);
        assert_eq!(found.endpoints, named);
        assert!(found.changing && found.refused.is_empty());
    }
}

#[test]
fn urls_that_lead_elsewhere_are_refused() {
    let far = [Endpoint::new("http://10.0.0.1:2379")];
    let secure = [Endpoint::new("https://etcd.example:2379")];
    let near = [
        Endpoint::new("http://localhost:2379"),
        Endpoint::new("http://127.0.0.2:1"),
    ];
    for (named, url, why) in [
        (&far[..], "http://0.0.0.0:2379", "names no machine"),
        (&far, "http://[::]:2379", "names no machine"),
        (&far, "http://localhost:2379", "names this machine"),
        (&far, "http://etcd.LOCALHOST:2379", "names this machine"),
        (&far, "http://127.0.0.5:2379", "names this machine"),
        (&far, "http://[::ffff:127.0.0.1]:2379", "names this machine"),
        (&far, "http://[::1]:2379", "names this machine"),
        (&far, "unix://etcd.sock", "http or https"),
        (&near, "http://0.0.0.0:2379", "names no machine"),
        (&secure, "http://10.0.0.2:2379", "are https"),
    ] {
        let found = of(&[member("a", &[url])], named);
        assert_eq!(urls(&found), [""; 0]);
        let [refused, _] = &found.refused[..] else {
            panic!("{url}: {found:?}")
        };
        assert!(refused.contains(why), "{refused}");
        assert!(
            refused.contains(url) && refused.contains("\"a\""),
            "{refused}"
        );
        // Another URL of this member is used.
        let good = "https://10.0.0.9:2379";
        let found = of(&[member("a", &[url, good])], named);
        assert_eq!((urls(&found), found.refused.len()), (vec![good], 0));
    }
    let none = "no member can be used".to_owned();
    assert_eq!(of(&[member("a", &[])], &far).refused, [none]);
    let local = of(&[member("a", &["http://127.0.0.1:2379"])], &near);
    assert_eq!(urls(&local), ["http://127.0.0.1:2379"]);
}
