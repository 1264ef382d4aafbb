//! Where the workers of a group meet: on rank 0, as it says in the group's store, under PyTorch's keys.

use rallypoint_core::Endpoints;
use rallypoint_store::{Store, StoreError};

use super::wire::Wire;
use crate::error::{RendezvousError, Result};
use crate::handler::Master;
use crate::native::local_address;
use crate::port::HeldPort;

const ADDRESS: &[u8] = b"MASTER_ADDR";
const PORT: &[u8] = b"MASTER_PORT";

/// Says where the workers meet, on rank 0; learns it, elsewhere.
pub(super) async fn agree(
    wire: &Wire,
    rank: usize,
    store: &dyn Store,
    local: &str,
) -> Result<(Master, Option<HeldPort>)> {
    let failed = |error: StoreError| match error {
        StoreError::Etcd(error) => wire.failed(error),
        StoreError::Timeout { after, .. } => RendezvousError::Timeout {
            run_id: wire.run_id.clone(),
            what: "the word of rank 0, where the workers meet,".to_owned(),
            after,
        },
        error => RendezvousError::State {
            run_id: wire.run_id.clone(),
            problem: "where the workers meet cannot be read".to_owned(),
            source: Some(error.into()),
        },
    };
    if rank == 0 {
        let held = HeldPort::free().map_err(|error| RendezvousError::State {
            run_id: wire.run_id.clone(),
            problem: "this node has no free port for its workers to meet at".to_owned(),
            source: Some(error.into()),
        })?;
        let master = Master { address: local.to_owned(), port: held.port() };
        store.set(ADDRESS, master.address.as_bytes()).await.map_err(failed)?;
        store.set(PORT, master.port.to_string().as_bytes()).await.map_err(failed)?;
        return Ok((master, Some(held)));
    }
    let values = store.multi_get(&[ADDRESS, PORT]).await.map_err(failed)?;
    let text = |at: usize| String::from_utf8_lossy(values.get(at).map_or(&[], Vec::as_slice)).into_owned();
    let port = text(1).trim().parse().map_err(|error| RendezvousError::State {
        run_id: wire.run_id.clone(),
        problem: format!("rank 0 says that the workers meet at port {:?}", text(1)),
        source: Some(Box::new(error)),
    })?;
    Ok((Master { address: text(0), port }, None))
}

/// Where others reach this node, if it was not told: the address by which it reaches etcd, or, where etcd is on
/// this machine, its name.
pub(super) async fn address(endpoints: &Endpoints) -> String {
    match local_address(endpoints).await {
        Ok(address) if !address.is_loopback() => address.to_string(),
        _ => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    }
}
