//! The API over HTTP, and the roles of its clients and of the control socket's.

use anyhow::Result;
use control::config::Config;

use super::super::http::Opened;
use super::super::server::access::Access;
use super::Owner;

/// Roles that are not used yet.
pub(super) struct NewRoles {
    access: Access,
    /// The group of the control socket.
    group: Option<u32>,
}

impl Owner {
    /// Serves the API by these listeners from now on, or by none.
    pub(super) fn serve_api(&mut self, opened: Option<Opened>) {
        // A client may wait there for the answer to this change.
        self.serving.api.take().into_iter().for_each(super::super::http::Service::retire);
        let (Some(opened), Some(service)) = (opened, &self.serving.service) else { return };
        match opened.serve(service.questions().clone(), self.serving.roles.clone()) {
            Ok(service) => self.serving.api = Some(service),
            Err(error) => tracing::error!("turnpike.api: {error:#}"),
        }
    }

    /// Opens the listeners of the new configuration, if they are others.
    pub(super) fn open_api(&self, old: &Config, new: &Config) -> Result<Option<Opened>> {
        let settings = new.api.as_ref().filter(|_| old.api != new.api);
        settings.map(|settings| Opened::open(settings, self.serving.api.as_ref())).transpose()
    }

    /// Looks the roles of the new configuration up, if they are others.
    pub(super) fn resolve_roles(&self, old: &Config, new: &Config) -> Result<Option<NewRoles>> {
        if old.access == new.access {
            return Ok(None);
        }
        let access = Access::resolve(new.access.as_ref());
        Ok(Some(NewRoles { access, group: Access::group(new.access.as_ref())? }))
    }

    /// Uses these roles from now on.
    pub(super) fn use_roles(&self, roles: Option<NewRoles>) {
        let Some(NewRoles { access, group }) = roles else { return };
        self.serving.roles.set(access);
        if let Some(Err(error)) = self.serving.service.as_ref().map(|service| service.share(group))
        {
            let socket = self.serving.socket.display();
            tracing::error!(
                "turnpike.access: socket {socket}: cannot be given to its group: {error}"
            );
        }
    }
}
