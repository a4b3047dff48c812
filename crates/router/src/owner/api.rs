//! The API over HTTP, and the roles of its clients and of the control socket's.

use anyhow::Result;
use control::config::{Config, Strictness};

use super::super::http::{Opened, Service};
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
        let entrance = match opened {
            Some(Opened::Renewal(renewal)) => {
                return self.serving.api.iter().for_each(|now| now.renew(&renewal));
            }
            Some(Opened::Listeners(entrance)) => Some(*entrance),
            None => None,
        };
        // A client may wait there for the answer to this change.
        self.serving.api.take().into_iter().for_each(Service::retire);
        let (Some(entrance), Some(service)) = (entrance, &self.serving.service) else { return };
        let (questions, roles) = (service.questions().clone(), self.serving.roles.clone());
        match Service::serve(entrance, questions, roles) {
            Ok(service) => self.serving.api = Some(service),
            Err(error) => tracing::error!("turnpike.api: {error:#}"),
        }
    }

    /// Opens the listeners of the new configuration, if they are others.
    pub(super) fn open_api(
        &self,
        (old, new): (&Config, &Config),
        strictness: Strictness,
    ) -> Result<Option<Opened>> {
        let settings = new.api.as_ref().filter(|_| old.api != new.api);
        let now = self.serving.api.as_ref();
        settings.map(|settings| Opened::open(settings, strictness, now)).transpose()
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
