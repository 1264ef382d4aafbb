//! NVIDIA's GPUs, as their driver tells of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor, TemperatureThreshold};
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{NVML_FI_DEV_REMAPPED_FAILURE, NVML_FI_DEV_REMAPPED_PENDING};
use nvml_wrapper::{Device, Nvml};
use rallypoint_core::text::are;

/// Xid errors of a program's making: a kernel that reads where it may not, a process that was killed. NVIDIA's own device
/// plugin passes over the same ones.
const OF_PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// How long one wait for errors lasts.
const LISTEN_MS: u32 = 60_000;

/// NVIDIA's library is found once, and stays.
static NVML: OnceLock<Nvml> = OnceLock::new();

/// The GPUs of this node, and what they have reported since this was made.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gpus(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// How many were there at first.
    first: Option<u32>,
    /// The last Xid error of each GPU, by its name.
    xids: BTreeMap<String, u64>,
}

impl Gpus {
    /// Listens for Xid errors from now on, where there is something to listen to.
    pub(crate) fn listen(&self) {
        let known = self.clone();
        let listen = move || {
            let Ok(nvml) = nvml() else { return };
            while let Ok(()) = known.hear(nvml) {}
        };
        // Without it, everything else is still looked at.
        let _ = thread::Builder::new().name("gpu-errors".to_owned()).spawn(listen);
    }

    /// Waits for the next error. It fails where there is nothing to listen to any more.
    fn hear(&self, nvml: &'static Nvml) -> Result<(), NvmlError> {
        let mut set = nvml.create_event_set()?;
        for at in 0..nvml.device_count()? {
            let device = nvml.device_by_index(at)?;
            set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|error| error.error)?;
        }
        loop {
            let event = match set.wait(LISTEN_MS) {
                Err(NvmlError::Timeout) => continue,
                event => event?,
            };
            if let Some(XidError::Value(xid)) = event.event_data
                && !OF_PROGRAMS.contains(&xid)
            {
                self.known().xids.insert(name(&event.device), xid);
            }
        }
    }

    /// Looks at all of them.
    pub(crate) fn look(&self, wanted: Option<u32>) -> Result<(), String> {
        let nvml = nvml()?;
        let count =
            nvml.device_count().map_err(|error| format!("the driver does not tell its GPUs: {error}"))?;
        let first = *self.known().first.get_or_insert(count);
        let least = wanted.unwrap_or(first).max(1);
        if count < least {
            let before = if wanted.is_none() && first > 0 { " that were there at first" } else { "" };
            return Err(format!("{}, of {least}{before}", are(count as usize, "GPU", "there")));
        }
        let mut problems = Vec::new();
        for at in 0..count {
            match nvml.device_by_index(at) {
                Ok(device) => problems.extend(of_device(&device).map(|why| format!("GPU {at}: {why}"))),
                Err(error) => problems.push(format!("GPU {at}: {error}")),
            }
        }
        let xids = self.known().xids.clone();
        problems.extend(
            xids.into_iter().map(|(gpu, xid)| format!("{gpu}: Xid {xid} since the launcher was started")),
        );
        if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn nvml() -> Result<&'static Nvml, String> {
    if let Some(nvml) = NVML.get() {
        return Ok(nvml);
    }
    let found = Nvml::init().map_err(|error| match error {
        NvmlError::LibloadingError(_) => {
            "there is no NVIDIA driver here (libnvidia-ml.so.1 is not found)".to_owned()
        }
        error => format!("the NVIDIA driver does not answer: {error}"),
    })?;
    Ok(NVML.get_or_init(|| found))
}

fn name(device: &Device<'_>) -> String {
    device.index().map_or_else(|_| "a GPU".to_owned(), |at| format!("GPU {at}"))
}

/// The first thing that is wrong with a GPU. What one does not tell is not held against it.
fn of_device(device: &Device<'_>) -> Option<String> {
    let lost = device.temperature(TemperatureSensor::Gpu);
    if let Err(error @ (NvmlError::GpuLost | NvmlError::ResetRequired)) = lost {
        return Some(error.to_string());
    }
    let slowdown = device.temperature_threshold(TemperatureThreshold::Slowdown);
    if let (Ok(now), Ok(most)) = (lost, slowdown)
        && now >= most
    {
        return Some(format!("{now} °C, and it slows down at {most} °C"));
    }
    let errors = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
    if let Ok(errors @ 1..) = errors {
        return Some(format!(
            "{errors} memory errors that ECC could not correct since its driver was loaded"
        ));
    }
    if device.are_pages_pending_retired().is_ok_and(|pending| pending) {
        return Some("it has pages of memory to retire, for which it must be reset".to_owned());
    }
    let fields = [FieldId(NVML_FI_DEV_REMAPPED_PENDING), FieldId(NVML_FI_DEV_REMAPPED_FAILURE)];
    let fields = device.field_values_for(&fields).unwrap_or_default();
    let words = [
        "it has rows of memory to remap, for which it must be reset",
        "it has run out of spare rows of memory",
    ];
    let set = fields
        .into_iter()
        .map(|field| field.is_ok_and(|field| field.value.is_ok_and(|value| is_set(&value))));
    words.into_iter().zip(set).find(|(_, set)| *set).map(|(words, _)| words.to_owned())
}

fn is_set(value: &SampleValue) -> bool {
    match value {
        SampleValue::F64(value) => *value != 0.0,
        SampleValue::U32(value) => *value != 0,
        SampleValue::U64(value) => *value != 0,
        SampleValue::I64(value) => *value != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_driver_is_told_so_and_one_with_it_has_gpus() {
        let looked = Gpus::default().look(None);
        if std::path::Path::new("/dev/nvidiactl").exists() {
            assert_eq!(looked, Ok(()));
        } else {
            assert!(looked.is_err_and(|why| why.contains("NVIDIA driver")));
        }
        assert!(Gpus::default().look(Some(1_000)).is_err());
    }
}
