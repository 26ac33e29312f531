//! Reads the endpoints that a user names, and refuses those that cannot work.

use http::Uri;

use super::access::Access;

/// Each endpoint with its scheme, once.
///
/// # Errors
///
/// Says which one is unusable and why.
pub(super) fn all(endpoints: &[String], access: &Access) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for (index, endpoint) in endpoints.iter().enumerate() {
        let endpoint = one(endpoint, access).map_err(|why| {
            // An endpoint with a password in it is not repeated.
            if endpoint.contains('@') {
                format!("etcd endpoint number {}: {why}", index + 1)
            } else {
                format!("etcd endpoint {endpoint:?}: {why}")
            }
        })?;
        if !all.contains(&endpoint) {
            all.push(endpoint);
        }
    }
    Ok(all)
}

/// Without a scheme it is `http`, or `https` if there are TLS options.
fn one(endpoint: &str, access: &Access) -> Result<String, String> {
    // As other programs take them, in one variable.
    if endpoint.contains(',') {
        return Err("it contains a comma; pass each endpoint separately".to_owned());
    }
    if endpoint.is_empty() {
        return Err("it is empty".to_owned());
    }
    let scheme = if access.demands_tls() {
        "https"
    } else {
        "http"
    };
    let whole = if endpoint.contains("://") {
        endpoint.to_owned()
    } else {
        format!("{scheme}://{endpoint}")
    };
    let uri: Uri = whole.parse().map_err(|error| format!("{error}"))?;
    check_scheme(&uri, access)?;
    let authority = uri.authority().map_or("", |authority| authority.as_str());
    if authority.contains('@') {
        return Err("set user and password by SessionOptions::credentials".to_owned());
    }
    let host = uri.host().unwrap_or_default();
    if host.is_empty() {
        return Err("the host is missing".to_owned());
    }
    // The parser takes anything after the colon, and calls what is no number "no port".
    if authority != host && uri.port_u16().is_none() {
        return Err("the port is not a number up to 65535".to_owned());
    }
    if uri.path() != "/" || uri.query().is_some() {
        return Err("only scheme, host and port are used".to_owned());
    }
    Ok(whole)
}

fn check_scheme(uri: &Uri, access: &Access) -> Result<(), String> {
    let why = match uri.scheme_str() {
        Some("http") if access.demands_tls() => "TLS options need https, but the scheme is http",
        Some("https") if cfg!(not(any(feature = "tls-ring", feature = "tls-aws-lc"))) => {
            "https needs the crate's feature `tls`"
        }
        Some("https") if !access.knows_authorities() => {
            "https needs to know whom to trust: name authorities in the TLS options, or enable the crate's feature \
             `tls-native-roots` or `tls-webpki-roots`"
        }
        Some("http" | "https") => return Ok(()),
        _ => "the scheme must be http or https",
    };
    Err(why.to_owned())
}
