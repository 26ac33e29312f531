//! Builds a node's announcement from options: its identity, its address and its metadata.

use eldest::Announcement;

use crate::connection::Connection;

const HEADING: &str = "Session";

/// The options of a node's announcement.
#[derive(Debug, clap::Args)]
#[group(id = "member")]
pub(crate) struct Args {
    /// The name of this node in elections [default: the name of this machine]
    #[arg(long, value_name = "NAME", env = "ELDEST_ID", hide_env_values = true, help_heading = HEADING)]
    id: Option<String>,

    /// Announce this to the other nodes, such as `address=10.0.0.1:8080` or `data_center=dc1`; repeat the option, or
    /// write one on each line of the variable
    #[arg(
        long, value_name = "KEY=VALUE", value_parser = pair, value_delimiter = '\n', env = "ELDEST_ANNOUNCE",
        hide_env_values = true, help_heading = HEADING
    )]
    announce: Vec<(String, String)>,
}

impl Args {
    pub(crate) fn id(&self) -> String {
        self.id.clone().unwrap_or_else(host_name)
    }

    /// Returns the announcement. It names the data centre of `--data-center` unless it names another one.
    pub(crate) fn announcement(&self, connection: &Connection) -> Announcement {
        self.announced_from(connection.data_center.as_deref())
    }

    fn announced_from(&self, data_center: Option<&str>) -> Announcement {
        let first = Announcement::default();
        let first = match data_center {
            Some(name) => first.with_data_center(name),
            None => first,
        };
        let pairs = self.announce.iter();
        pairs.fold(first, |all, (key, value)| match key.as_str() {
            "address" => all.with_address(value),
            "data_center" => all.with_data_center(value),
            _ => all.with_metadata(key, value),
        })
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as KEY=VALUE".to_owned()),
    }
}

#[cfg(unix)]
pub(crate) fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

/// Returns the name as Windows reports it.
#[cfg(not(unix))]
pub(crate) fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "eldest".to_owned())
}

/// Returns this user at this machine, as the author of an order.
pub(crate) fn this_user() -> String {
    let user = ["USER", "LOGNAME"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok());
    let user = user.filter(|user| !user.is_empty());
    let host = host_name();
    user.map_or(host.clone(), |user| format!("{user}@{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_announcements_are_shown_under_their_names() {
        let pairs =
            ["address=10.0.0.1:80", "data_center=dc1", "zone=a=b"].map(|text| pair(text).unwrap());
        let said = Args {
            id: Some("n".to_owned()),
            announce: pairs.to_vec(),
        };
        assert_eq!(said.announced_from(Some("eu")).data_center(), Some("dc1"));
        let said = said.announced_from(None);
        assert_eq!(said.address(), Some("10.0.0.1:80"));
        assert_eq!(said.data_center(), Some("dc1"));
        assert_eq!(said.metadata("zone"), Some("a=b"));
        let silent = Args {
            id: None,
            announce: Vec::new(),
        };
        assert_eq!(silent.announced_from(Some("eu")).data_center(), Some("eu"));
        assert_eq!(silent.announced_from(None), Announcement::default());
        assert!(pair("=x").is_err() && pair("x").is_err());
    }
}
