//! Names the kinds of requests whose next one a fault can hit.

use serde::{Deserialize, Serialize};
use strum::VariantArray;

use eldest_core::action::Ask;

/// A kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, VariantArray)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Request {
    Grant,
    Join,
    Take,
    Delete,
    Release,
    Find,
    List,
}

impl Request {
    /// Returns a function that recognizes requests of this kind.
    pub(crate) fn matcher(self) -> fn(&Ask) -> bool {
        match self {
            Request::Grant => |ask| matches!(ask, Ask::Grant { .. }),
            Request::Join => |ask| matches!(ask, Ask::Join { .. }),
            Request::Take => |ask| matches!(ask, Ask::Take { .. }),
            Request::Delete => |ask| matches!(ask, Ask::Delete { .. }),
            Request::Release => |ask| matches!(ask, Ask::Release { .. }),
            Request::Find => |ask| matches!(ask, Ask::Find { .. }),
            Request::List => |ask| matches!(ask, Ask::List { .. } | Ask::Older { .. }),
        }
    }
}
