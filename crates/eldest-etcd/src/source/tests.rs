use std::io;

use futures::FutureExt;

use super::*;
use crate::runtime::Scripted;

fn checked(text: &str) -> Result<String, String> {
    let endpoints = vec![Endpoint::new(text)];
    all(endpoints, &Access::default()).map(|mut all| all.remove(0).url)
}

#[test]
fn names_are_checked_like_urls() {
    for (text, whole) in [
        ("dns+etcd:2379", "dns+http://etcd:2379"),
        ("dns+http://http:2379", "dns+http://http:2379"),
        ("srv://example.com", "srv://example.com"),
        ("srv://example.com/blue-2", "srv://example.com/blue-2"),
    ] {
        assert_eq!(checked(text).as_deref(), Ok(whole));
    }
    for (text, why) in [
        ("dns+ftp://etcd", "http or https"),
        ("dns+", "empty"),
        ("dns+http://10.0.0.1:2379", "10.0.0.1 is an address"),
        ("dns+http://[::1]:2379", "::1 is an address"),
        ("dns+http://etcd:x", "not a number"),
        ("dns+http://etcd/path", "only scheme, host and port"),
        ("srv://", "a domain"),
        ("srv://example.com:2379", "a domain"),
        ("srv://a b", "a domain"),
        ("srv://user@example.com", "a domain"),
        ("srv://example.com/", "cluster's name"),
        ("srv://example.com/a/b", "cluster's name"),
        ("srv://example.com/a_b", "cluster's name"),
    ] {
        let refused = checked(text).unwrap_err();
        assert!(refused.contains(why), "{text}: {refused}");
    }
}

#[test]
fn certificate_at_an_address_must_be_valid_for_the_host() {
    for (url, at, whole) in [
        (
            "https://etcd.example:2379",
            "10.0.0.1",
            "https://10.0.0.1:2379",
        ),
        ("https://etcd.example", "fd00::1", "https://[fd00::1]"),
        ("http://http:1", "::1", "http://[::1]:1"),
    ] {
        let url = Url::parse(url, false).unwrap();
        let endpoint = at_address(&url, at.parse().unwrap());
        assert_eq!(endpoint.url, whole);
        assert_eq!(endpoint.server_name.as_deref(), Some(url.host()));
    }
}

#[test]
fn the_host_of_an_endpoint_has_no_port_and_no_brackets() {
    for (url, name) in [
        ("http://a:1", Some("a")),
        ("https://[::1]:2379", Some("::1")),
        ("http://a/", Some("a")),
        ("dns+https://a.b", Some("a.b")),
        ("srv://example.com/x", None),
    ] {
        assert_eq!(host(&Endpoint::new(url)).as_deref(), name);
    }
}

#[test]
#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
fn beside_an_https_endpoint_nothing_is_dialled_without_tls() {
    let urls = |texts: &[&str]| {
        let endpoints: Vec<_> = texts.iter().map(|text| Endpoint::new(*text)).collect();
        let access = access_of(&endpoints, &Access::default());
        let all = all(endpoints, &access)?;
        Ok::<_, String>(all.into_iter().map(|one| one.url).collect::<Vec<_>>())
    };
    for secure in ["https://a:1", "HTTPS://a:1", "dns+hTTps://a:1"] {
        for plain in ["http://b:1", "HTTP://b:1", "dns+http://b:1"] {
            let refused = urls(&[plain, secure]).expect_err(plain);
            assert!(refused.contains("demand https"), "{refused}");
        }
        let both = urls(&["b:1", secure]).unwrap();
        assert_eq!(both[0], "https://b:1", "beside {secure}");
    }
}

/// Returns a DNS with both kinds of records, or with an error for the second kind.
fn records(secure: &[&str], plain: io::Result<&[&str]>) -> Scripted {
    let services = |hosts: &[&str]| {
        let service = |host: &&str| Service {
            priority: 1,
            host: (*host).to_owned(),
            port: 2379,
        };
        hosts.iter().map(service).collect::<Vec<_>>()
    };
    let (secure, plain) = (services(secure), plain.map(services));
    let plain = plain.map_err(|error| error.kind());
    let answer = move |name: String| {
        let found = match &*name {
            "_etcd-client-ssl._tcp.example.com" => Ok(secure.clone()),
            "_etcd-client._tcp.example.com" => plain.clone().map_err(io::Error::from),
            _ => panic!("{name}"),
        };
        std::future::ready(found).boxed()
    };
    Scripted {
        services: Box::new(answer),
        addresses: Box::new(|_| std::future::ready(Ok(Vec::new())).boxed()),
        ..Scripted::still()
    }
}

fn found(env: &Scripted, name: &str, access: &Access) -> Result<Vec<String>, String> {
    let source = Source::of(name).unwrap();
    let found = source.look_up(env, access).now_or_never().unwrap()?;
    Ok(found.into_iter().map(|one| one.url).collect())
}

#[test]
#[cfg(any(feature = "tls-ring", feature = "tls-aws-lc"))]
fn ssl_records_are_https_and_replace_plain_ones() {
    let dns = || records(&["a"], Ok(&["b"]));
    let (domain, plain) = ("srv://example.com", Access::default());
    let all = ["https://a:2379"].map(str::to_owned);
    assert_eq!(found(&dns(), domain, &plain).unwrap(), all);
    let open = records(&[], Ok(&["b"]));
    assert_eq!(found(&open, domain, &plain).unwrap(), ["http://b:2379"]);
    let tls = Access::default().with_tls(Some(super::super::access::TlsOptions::new()));
    assert_eq!(found(&dns(), domain, &tls).unwrap(), all);
    let none = found(&records(&[], Ok(&["b"])), domain, &tls).unwrap_err();
    assert!(none.contains("no SRV record"), "{none}");
}

#[test]
fn a_lookup_fails_if_one_query_fails_or_finds_nothing() {
    let access = Access::default();
    for (dns, name, why) in [
        (
            records(&["a"], Err(io::ErrorKind::TimedOut.into())),
            "srv://example.com",
            "_etcd-client._tcp.example.com: timed out",
        ),
        (
            records(&[], Err(io::ErrorKind::Unsupported.into())),
            "srv://example.com",
            "feature `srv`",
        ),
        (records(&[], Ok(&[])), "srv://example.com", "no SRV record"),
        (
            records(&[], Ok(&["not a host"])),
            "srv://example.com",
            "not a host",
        ),
        (records(&[], Ok(&[])), "dns+http://etcd", "has no address"),
    ] {
        let failure = found(&dns, name, &access).unwrap_err();
        assert!(failure.contains(why), "{failure}");
    }
}
