//! Roles of clients: which user may ask for what (`turnpike.access`).
//!
//! ```text
//!   control socket, API's socket -- SO_PEERCRED, SO_PEERGROUPS --> Peer -+
//!   API by TCP on this machine -- sock_diag: the user -----------> Peer -+-> role -> Operation's role: admitted or not
//!   API by TCP with a certificate -- its names --------------------------+
//!   API by TCP with a token ---------------------------------------------+
//! ```
//!
//! root and the router's own user have all roles; others have those that the configuration gives them, and none without
//! it. The kernel reports user and groups as they were when the process connected. A change of the roles concerns the
//! next request of a connection. Telnet sessions, Click's control sockets and commands in Lua have rules of their own.

use std::io;
use std::os::fd::AsFd;
use std::sync::Mutex;

use anyhow::{Error, Result};
use api::Request;
use api::http::{Operation, Role};
use arc_swap::ArcSwap;
use control::config::{self, Holder};
use control::gate::{LogLimit, gid_of, uid_of, user_name};
use dataplane::lock::lock;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::Uid;

use super::audit;

/// Holders of roles.
#[derive(Debug, Default)]
pub struct Access {
    /// For each role those named for it.
    roles: [Vec<(Id, String)>; 3],
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Id {
    User(u32),
    Group(u32),
    Certificate(String),
}

impl Access {
    /// Looks the names of a configuration up. A new one is checked before; a holder that is gone since holds nothing.
    pub fn resolve(settings: Option<&config::Access>) -> Self {
        let Some(config::Access { group: _, read, operate, configure }) = settings else {
            return Self::default();
        };
        let id = |holder: &Holder| {
            let id = match holder {
                Holder::User(name) => uid_of(name).map(Id::User),
                Holder::Group(name) => gid_of(name).map(Id::Group),
                Holder::Certificate(name) => Ok(Id::Certificate(name.clone())),
            };
            let id = id.inspect_err(|reason| tracing::warn!("access: no role for it: {reason}"));
            Some((id.ok()?, holder.to_string()))
        };
        let roles = [read, operate, configure];
        Self { roles: roles.map(|holders| holders.iter().filter_map(id).collect()) }
    }

    /// Returns the number of the control socket's group, if the configuration has one.
    ///
    /// # Errors
    /// There is no such group.
    pub fn group(settings: Option<&config::Access>) -> Result<Option<u32>> {
        let group = settings.and_then(|settings| settings.group.as_deref());
        group.map(gid_of).transpose().map_err(Error::msg)
    }

    /// Returns the role of a user of this machine; `None` if it has none.
    pub fn role_of(&self, peer: &Peer) -> Option<Role> {
        if [0, Uid::effective().as_raw()].contains(&peer.uid) {
            return Some(Role::Configure);
        }
        self.highest(|id| match id {
            Id::User(uid) => *uid == peer.uid,
            Id::Group(gid) => peer.groups.contains(gid),
            Id::Certificate(_) => false,
        })
    }

    /// Returns the role of a client whose certificate has these names; `None` if it has none.
    pub fn role_of_names(&self, names: &[String]) -> Option<Role> {
        self.highest(|id| matches!(id, Id::Certificate(name) if names.contains(name)))
    }

    /// The highest role with such a holder.
    fn highest(&self, is_holder: impl Fn(&Id) -> bool) -> Option<Role> {
        let has = |role: &Role| self.roles[*role as usize].iter().any(|(id, _)| is_holder(id));
        Role::ALL.into_iter().rev().find(has)
    }

    /// Those who have a role, as in messages.
    fn holders(&self, role: Role) -> String {
        let higher = self.roles[role as usize..].iter().flatten();
        let shown: Vec<_> = higher.map(|(_, shown)| shown.as_str()).collect();
        match shown[..] {
            [] => format!("only root has it: turnpike.access {{ {role} = {{ … }} }}"),
            _ => shown.join(", "),
        }
    }
}

/// The roles now, for all who serve clients.
#[derive(Debug, Default)]
pub struct Roles {
    access: ArcSwap<Access>,
    refusals: Mutex<LogLimit>,
    /// Of clients that are not known.
    unknown: Mutex<LogLimit>,
}

impl Roles {
    /// Uses these from now on.
    pub fn set(&self, access: Access) {
        self.access.store(access.into());
    }

    /// Returns the role of a user of this machine; `None` if it has none.
    pub fn role_of(&self, peer: &Peer) -> Option<Role> {
        self.access.load().role_of(peer)
    }

    /// Returns the role of a client whose certificate has these names; `None` if it has none.
    pub fn role_of_names(&self, names: &[String]) -> Option<Role> {
        self.access.load().role_of_names(names)
    }

    /// Checks that a client with this role may make a request, and returns the role; `who` names the client.
    ///
    /// # Errors
    /// The text for the client.
    pub fn admit(
        &self,
        operation: &Operation,
        role: Option<Role>,
        who: impl Fn() -> String,
    ) -> Result<Role, String> {
        let needed = operation.role;
        if let Some(role) = role.filter(|role| *role >= needed) {
            return Ok(role);
        }
        let (who, name, holders) = (who(), operation.name(), self.access.load().holders(needed));
        Err(format!("{who} may not {name}: needs role {needed} ({holders})"))
    }

    /// Logs a refusal, at a limited rate: each is a client's choice.
    pub fn log(
        &self,
        client: &audit::Client,
        operation: &Operation,
        request: Option<&Request>,
        reason: &str,
    ) {
        let Some(others) = lock(&self.refusals).admit() else { return };
        let asked = request.and_then(audit::change).unwrap_or_else(|| operation.name());
        client.refused(&asked, &format!("{reason}{others}"));
    }

    /// Logs that a client is not known, likewise.
    pub fn log_unknown(&self, client: &audit::Client, reason: &str) {
        let Some(others) = lock(&self.unknown).admit() else { return };
        client.refused("identification", &format!("{reason}{others}"));
    }
}

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    uid: u32,
    groups: Vec<u32>,
    process: Option<i32>,
}

impl Peer {
    /// Returns the process that opened a connection of a Unix socket.
    ///
    /// # Errors
    /// The kernel does not tell it.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let credentials = getsockopt(socket, PeerCredentials)?;
        let mut groups = dpdk::peer_groups(socket)?;
        groups.push(credentials.gid());
        Ok(Self { uid: credentials.uid(), groups, process: Some(credentials.pid()) })
    }

    /// A user whose groups are not known.
    pub fn user(uid: u32) -> Self {
        Self { uid, groups: Vec::new(), process: None }
    }

    /// Returns its name for messages: `user alice (uid 1000)`.
    pub fn name(&self) -> String {
        let name = user_name(self.uid);
        format!("user {}", name.strip_prefix("uid ").unwrap_or(&name))
    }

    /// Returns its name for the audit log: `uid 1000, pid 4711`.
    pub fn number(&self) -> String {
        let process = self.process.map_or_else(String::new, |pid| format!(", pid {pid}"));
        format!("uid {}{process}", self.uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        let settings = config::Access {
            group: None,
            read: vec![Holder::Group("70000".to_owned())],
            operate: vec![Holder::User("70001".to_owned()), Holder::Group("70002".to_owned())],
            configure: vec![Holder::User("70003".to_owned())],
        };
        Access::resolve(Some(&settings))
    }

    fn peer(uid: u32, groups: &[u32]) -> Peer {
        Peer { uid, groups: groups.to_vec(), process: Some(7) }
    }

    #[test]
    fn the_highest_role_counts() {
        let role = |uid, groups: &[u32]| access().role_of(&peer(uid, groups));
        assert_eq!(role(60000, &[]), None);
        // A user with the number of a group, and the reverse.
        assert_eq!((role(70000, &[]), role(60000, &[70001, 70003])), (None, None));
        assert_eq!(role(60000, &[1, 70000]), Some(Role::Read));
        assert_eq!(role(70001, &[70000]), Some(Role::Operate));
        assert_eq!(role(60000, &[70002, 70000]), Some(Role::Operate));
        assert_eq!(role(70003, &[]), Some(Role::Configure));
        assert_eq!(role(0, &[]), Some(Role::Configure));
        assert_eq!(Access::default().role_of(&peer(70003, &[70000])), None);
        assert_eq!(Access::default().role_of(&peer(0, &[])), Some(Role::Configure));
    }

    #[test]
    fn a_certificate_has_the_highest_role_of_its_names_and_is_no_user() {
        let certificate = |name: &str| Holder::Certificate(name.to_owned());
        let settings = config::Access {
            read: vec![certificate("prometheus"), certificate("70001")],
            operate: vec![certificate("alice"), Holder::User("70003".to_owned())],
            ..config::Access::default()
        };
        let access = Access::resolve(Some(&settings));
        let role = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            access.role_of_names(&names)
        };
        assert_eq!((role(&[]), role(&["bob", "ALICE", "70003", "root"])), (None, None));
        assert_eq!(role(&["prometheus"]), Some(Role::Read));
        assert_eq!(role(&["prometheus", "alice"]), Some(Role::Operate));
        assert_eq!(access.role_of(&peer(70001, &[70001])), None, "a name is no user");
    }

    #[test]
    fn a_refusal_names_who_may() {
        let roles = Roles::default();
        let operation = |path| Operation::find("POST", path).unwrap().0;
        let refused = |path, role| {
            let who = || peer(60000, &[]).name();
            roles.admit(operation(path), role, who).unwrap_err()
        };
        let nobody = "user 60000 may not apply: needs role configure (only root has it: \
                      turnpike.access { configure = { … } })";
        assert_eq!(refused("/v1/apply", Some(Role::Operate)), nobody);
        roles.set(access());
        let apply = "user 60000 may not apply: needs role configure (user 70003)";
        assert_eq!(refused("/v1/apply", Some(Role::Operate)), apply);
        let trace =
            "user 60000 may not trace: needs role operate (user 70001, group 70002, user 70003)";
        assert_eq!(refused("/v1/trace", Some(Role::Read)), trace);
        assert!(refused("/v1/trace", None).starts_with("user 60000 may not trace"));
        assert!(roles.admit(operation("/v1/trace"), Some(Role::Operate), String::new).is_ok());
    }

    #[test]
    fn a_peer_is_the_process_at_the_other_end() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = Peer::of(&one).unwrap();
        assert_eq!(peer.uid, Uid::effective().as_raw());
        assert!(peer.groups.contains(&nix::unistd::getegid().as_raw()));
        assert_eq!(peer.process, Some(std::process::id() as i32));
    }
}
