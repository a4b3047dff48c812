//! The groups of the process at the other end of a Unix socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

/// Groups for which there is room at first; a process may have 65,536.
const USUAL: usize = 64;

/// Returns the supplementary groups that the process at the other end of a Unix stream socket had when it connected. The
/// kernel keeps them with the connection: unlike those in `/proc`, they are not of another process with its number.
///
/// # Errors
/// The descriptor is no such socket.
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let descriptor = socket.as_fd().as_raw_fd();
    let mut groups = vec![0_u32; USUAL];
    loop {
        let mut size = size_of_val(&*groups) as libc::socklen_t;
        // SAFETY: room for so many bytes and their number, for the call.
        let result = unsafe {
            let place = groups.as_mut_ptr().cast();
            libc::getsockopt(descriptor, libc::SOL_SOCKET, libc::SO_PEERGROUPS, place, &mut size)
        };
        let wanted = size as usize / size_of::<u32>();
        match Errno::last() {
            _ if result == 0 => {
                groups.truncate(wanted);
                return Ok(groups);
            }
            // It says how many there are.
            Errno::ERANGE if wanted > groups.len() => groups.resize(wanted, 0),
            error => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_groups_are_those_of_the_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let mut groups = peer_groups(&one).unwrap();
        let own = nix::unistd::getgroups().unwrap();
        let mut own: Vec<u32> = own.into_iter().map(nix::unistd::Gid::as_raw).collect();
        groups.sort_unstable();
        own.sort_unstable();
        assert_eq!(groups, own);
    }

    #[test]
    fn another_file_has_no_peer() {
        assert!(peer_groups(std::fs::File::open("/dev/null").unwrap()).is_err());
    }
}
