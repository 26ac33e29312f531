//! Refuses versions of etcd whose linearizable reads may show an old state after a pause. A session that allows
//! challenges leads by such reads alone.

use etcd_client::Client;

use super::call::CallError;

/// The first patch of each minor version with the fix. Later minor versions have it from the beginning.
const FIXED: [(u64, u64); 3] = [(4, 42), (5, 28), (6, 9)];

/// Fails if the version of the client's server is not known to have the fix.
pub(super) async fn check(client: &Client) -> Result<(), CallError> {
    let status = client.maintenance_client().status().await;
    let version = match status {
        Ok(status) => status.version().to_owned(),
        // etcd 3.4 shows its status to root alone, if it has users.
        Err(etcd_client::Error::GRpcStatus(status))
            if status.code() == tonic::Code::PermissionDenied =>
        {
            "unknown to this user".to_owned()
        }
        Err(error) => return Err(error.into()),
    };
    if is_fixed(&version) {
        Ok(())
    } else {
        Err(CallError::Outdated(version))
    }
}

fn is_fixed(version: &str) -> bool {
    let (release, pre) = version.split_once('-').map_or((version, ""), |both| both);
    let mut parts = release.split('.').map(str::parse::<u64>);
    let (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch)), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    if major != 3 {
        return major > 3;
    }
    match FIXED.iter().find(|(fixed, _)| *fixed == minor) {
        // A version before the release may lack the fix.
        Some((_, first)) => patch > *first || (patch == *first && pre.is_empty()),
        None => minor > 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_stale_reads_are_refused() {
        for version in [
            "",
            "x",
            "3.6",
            "2.3.8",
            "3.3.27",
            "3.4.41",
            "3.5.27",
            "3.6.8",
            "3.6.9-rc.0",
            "unknown to this user",
        ] {
            assert!(!is_fixed(version), "{version}");
        }
        for version in [
            "3.4.42",
            "3.5.28",
            "3.6.9",
            "3.6.10-rc.0",
            "3.7.0",
            "3.7.0-rc.0",
            "4.0.0",
        ] {
            assert!(is_fixed(version), "{version}");
        }
    }
}
