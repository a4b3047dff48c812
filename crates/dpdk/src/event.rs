//! Event devices: packets are scheduled to whichever worker is free, by hardware (cnxk, DLB) or by software (`event_sw`,
//! `event_dsw`).
//!
//! ```text
//!   receiver -- enter --> [ queue of each class ] --> dequeue -- worker 0 -- complete --+
//!      ^                  [    event device     ] --> dequeue -- worker 1 -- complete --+
//!      |                                                                                |
//!      +------- take ---- [   transmit queue    ] <-- forwarded packets, in order ------+
//! ```
//!
//! The receiver's port is the only one that new packets enter by, and the only one that the transmit queue leads to. A
//! worker dequeues up to 64 events, moves their packets to a [`Burst`] ([`EventPort::load`]), and completes all
//! events at once and in their order: those whose packet is to be sent are forwarded to the transmit queue, the others are
//! released. `event_sw` identifies a completed event by its place in the order alone.
//!
//! Each packet is counted when it enters and when its event has been released, so the difference is the number of packets
//! in the device or with a worker. What is still inside when the device closes returns to its pool.

use std::cell::Cell;
use std::ffi::{CStr, CString, c_void};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dpdk_sys as sys;
use nix::errno::Errno;

use crate::Error;
use crate::burst::{BURST_MAX, Burst, PacketList, slots};
use crate::drivers::event_drivers;
use crate::eal::{Eal, EalRef};
use crate::mbuf::{Mbuf, RawMbuf, free_bulk};
use crate::port::HOTPLUG;
use crate::time::{tsc, tsc_hz};

/// Flows that are told apart; further ones share a number.
pub const FLOWS: u32 = 8192;

/// Most packets in a device at once.
pub const EVENTS_MOST: usize = 4096;

/// The part of a device's places above which packets of the lower classes do not enter any more: the rest is for network
/// control.
const NEARLY_FULL: (u64, u64) = (5, 8);

/// Most workers of a device in software: its driver reserves up to 128 packets' places for each port that waits, and
/// with more ports could have none left for packets that enter.
const IN_SOFTWARE_MOST: usize = 20;

/// Most queues for packets that enter, the first of which is served first.
pub const CLASSES_MOST: usize = 6;

/// The bit of a packet's tag, of the 16 that name its source, for packets about which their device has reported results.
const SAYS_MORE: u16 = 1 << 15;

/// The part of a tag that names the source, and later the egress port.
const SOURCE: u64 = 0xffff;

/// Memory that a virtual device may take, in bytes. DPDK ends the process when it has not enough.
const ROOM: usize = 64 << 20;

/// The longest that a device may refuse events that it has scheduled itself.
const PATIENCE_S: u64 = 1;

/// Refusals after which a worker gives up its core for a moment.
const SPINS: u32 = 64;

/// The scheduling of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EventOrder {
    /// Any worker takes any packet; packets leave in the order in which they entered.
    #[default]
    Ordered,
    /// A flow is with one worker at a time, and moves when none of its packets is inside.
    Atomic,
    /// Any worker takes any packet; packets leave as they are finished.
    Parallel,
}

impl EventOrder {
    /// All.
    pub const ALL: [Self; 3] = [Self::Ordered, Self::Atomic, Self::Parallel];

    /// Returns the name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ordered => "ordered",
            Self::Atomic => "atomic",
            Self::Parallel => "parallel",
        }
    }

    /// Returns the order of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|order| order.name() == name)
    }

    fn schedule_type(self) -> u8 {
        let kind = match self {
            Self::Ordered => sys::RTE_SCHED_TYPE_ORDERED,
            Self::Atomic => sys::RTE_SCHED_TYPE_ATOMIC,
            Self::Parallel => sys::RTE_SCHED_TYPE_PARALLEL,
        };
        kind as u8
    }
}

/// DPDK's `struct rte_event`: a word of bit-fields, and the packet.
#[derive(Clone, Copy)]
#[repr(C)]
struct Event {
    word: u64,
    packet: RawMbuf,
}

const _: () = assert!(size_of::<Event>() == size_of::<sys::rte_event>());

/// The bits of an event's word.
mod bits {
    pub const TYPE: u32 = 28;
    pub const OP: u32 = 32;
    pub const SCHEDULE: u32 = 38;
    pub const QUEUE: u32 = 40;
    pub const PRIORITY: u32 = 48;
}

impl Event {
    const NONE: Self = Self { word: 0, packet: RawMbuf::NULL };

    fn new(flow: u32, (queue, schedule): (u8, u8), packet: RawMbuf) -> Self {
        let word = u64::from(flow % FLOWS)
            | u64::from(sys::RTE_EVENT_TYPE_CPU) << bits::TYPE
            | u64::from(sys::RTE_EVENT_OP_NEW) << bits::OP
            | u64::from(schedule) << bits::SCHEDULE
            | u64::from(queue) << bits::QUEUE
            | u64::from(sys::RTE_EVENT_DEV_PRIORITY_NORMAL) << bits::PRIORITY;
        Self { word, packet }
    }

    /// The same, to be passed on to another queue.
    fn forwarded(self, (queue, schedule): (u8, u8)) -> Self {
        let kept = !(3 << bits::OP | 3 << bits::SCHEDULE | 0xff << bits::QUEUE);
        let word = self.word & kept
            | u64::from(sys::RTE_EVENT_OP_FORWARD) << bits::OP
            | u64::from(schedule) << bits::SCHEDULE
            | u64::from(queue) << bits::QUEUE;
        Self { word, ..self }
    }

    /// The same, without its packet, that is to end.
    fn released(self) -> Self {
        let word = self.word & !(3 << bits::OP) | u64::from(sys::RTE_EVENT_OP_RELEASE) << bits::OP;
        Self { word, packet: RawMbuf::NULL }
    }
}

/// A number that one thread raises.
#[derive(Default)]
struct Count(AtomicU64);

impl Count {
    fn add(&self, count: usize) {
        let sum = self.0.load(Ordering::Relaxed).wrapping_add(count as u64);
        self.0.store(sum, Ordering::Release);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// A virtual device that nobody uses.
///
/// DPDK 22.11 must not lose an event device while it has others (`rte_event_dev_get_dev_id` reads those that are gone), and
/// `event_sw` leaves its service behind. So a closed one waits for its next use. `event_dsw` frees ports twice that it does
/// not get again, so it gets no fewer than before, and nothing that may fail: it does not know `ordered`.
struct Idle {
    id: u8,
    kind: Kind,
}

/// The uses of a virtual device so far.
#[derive(Clone)]
struct Kind {
    /// Its name and arguments in the configuration.
    device: String,
    is_ordered: bool,
    workers: usize,
}

static IDLE: Mutex<Vec<Idle>> = Mutex::new(Vec::new());

impl Idle {
    /// Takes one that can be used for this.
    fn take(wanted: &Kind) -> Option<Self> {
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |Self { kind, .. }: &Self| {
            kind.device == wanted.device
                && kind.workers <= wanted.workers
                && (kind.is_ordered || !wanted.is_ordered)
        };
        let fitting = idle.iter().enumerate().filter(|(_, one)| fits(one));
        let (place, _) = fitting.max_by_key(|(_, one)| one.kind.workers)?;
        Some(idle.swap_remove(place))
    }
}

/// A device's place in DPDK; dropping it closes the device.
struct Attached {
    id: u8,
    /// Its use, if it is a virtual device that has been made for it.
    made: Option<Kind>,
    is_started: bool,
    _eal: EalRef,
}

impl Drop for Attached {
    fn drop(&mut self) {
        // SAFETY: no port is left, so nobody uses the device.
        unsafe {
            if self.is_started {
                sys::rte_event_dev_stop(self.id);
            }
            let Some(kind) = self.made.take() else { return };
            sys::rte_event_dev_close(self.id);
            let idle = Idle { id: self.id, kind };
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(idle);
        }
    }
}

/// State that the ports of a device share.
struct Shared {
    attached: Attached,
    name: String,
    driver: String,
    order: EventOrder,
    classes: usize,
    /// DPDK's number of the service that schedules, unless the device or its ports do.
    service: Option<u32>,
    /// Packets inside above which it is nearly full.
    nearly_full: u64,
    /// Packets that have entered.
    entered: Count,
    /// By port, the receiver's first: events that it has released.
    released: Vec<Count>,
    /// By port: events that it has completed, those that it has forwarded included.
    completed: Vec<Count>,
    /// No packet enters any more.
    is_closed: AtomicBool,
}

impl Shared {
    fn in_flight(&self) -> u64 {
        // Those released first: a packet enters before it is released.
        let released = self.released.iter().fold(0_u64, |sum, of| sum.wrapping_add(of.get()));
        self.entered.get().saturating_sub(released)
    }
}

/// A configured and started event device. Clones are of one.
#[derive(Clone)]
pub struct EventDevice(Arc<Shared>);

/// The configuration of an event device.
#[derive(Clone, Copy, Debug)]
pub struct EventConfig<'a> {
    /// The name of a device that exists, or of a virtual one that is made, perhaps with arguments:
    /// `event_sw0,sched_quanta=64`.
    pub device: &'a str,
    /// The scheduling.
    pub order: EventOrder,
    /// Ports besides the receiver's, at least one.
    pub workers: usize,
}

/// A device and its ports.
pub struct EventPorts {
    /// The device.
    pub device: EventDevice,
    /// The receiver's port.
    pub receiver: EventPort,
    /// Those of workers.
    pub workers: Vec<EventPort>,
}

impl EventDevice {
    /// Opens a device, configures and starts it.
    ///
    /// # Errors
    /// There is no such device, it lacks a feature, or DPDK refuses a step.
    pub fn open(eal: &Eal, config: &EventConfig<'_>) -> Result<EventPorts, Error> {
        let mut attached = attach(eal, config)?;
        let name = config.device.split(',').next().unwrap_or_default();
        let setup = Setup { id: attached.id, name, order: config.order };
        let info = setup.info()?;
        let classes = setup.check(&info, config.workers)?;
        setup.configure(&info, (classes, config.workers))?;
        let service = setup.service();
        setup.start(service)?;
        attached.is_started = true;
        let shared = Arc::new(Shared {
            attached,
            name: config.device.to_owned(),
            driver: driver_of(&info),
            order: config.order,
            classes,
            service,
            nearly_full: nearly_full(&info),
            entered: Count::default(),
            released: (0..=config.workers).map(|_| Count::default()).collect(),
            completed: (0..=config.workers).map(|_| Count::default()).collect(),
            is_closed: AtomicBool::new(false),
        });
        let port = |port| EventPort::new(shared.clone(), port);
        let workers = (1..=config.workers).map(|worker| port(worker as u8)).collect();
        Ok(EventPorts { receiver: port(0), workers, device: Self(shared) })
    }

    /// Returns the name by which it was opened.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Returns the name of its driver.
    pub fn driver(&self) -> &str {
        &self.0.driver
    }

    /// Returns its scheduling.
    pub fn order(&self) -> EventOrder {
        self.0.order
    }

    /// Returns the number of queues that packets enter by.
    pub fn classes(&self) -> usize {
        self.0.classes
    }

    /// Returns true if a thread has to run [`EventDevice::schedule`].
    pub fn needs_scheduler(&self) -> bool {
        self.0.service.is_some()
    }

    /// Schedules what has come since the last call. The calling thread is registered with DPDK; only one calls.
    pub fn schedule(&self) {
        if let Some(service) = self.0.service {
            // SAFETY: the service exists as long as the device; DPDK refuses a second thread at the same time.
            unsafe { sys::rte_service_run_iter_on_app_lcore(service, 1) };
        }
    }

    /// Returns the number of packets in the device, with workers, or on their way from it to a transmit queue.
    pub fn in_flight(&self) -> u64 {
        self.0.in_flight()
    }

    /// Returns a number that grows whenever packets enter, and whenever a port has done with some.
    pub fn activity(&self) -> u64 {
        let Shared { entered, completed, .. } = &*self.0;
        completed.iter().fold(entered.get(), |sum, of| sum.wrapping_add(of.get()))
    }

    /// Returns the number of packets that have left the device by its transmit queue.
    pub fn returned(&self) -> u64 {
        self.0.released[0].get()
    }

    /// Says that no packet enters any more, or that packets enter again.
    pub fn set_closed(&self, is_closed: bool) {
        self.0.is_closed.store(is_closed, Ordering::Release);
    }

    /// Returns true if no packet is inside and none will enter.
    pub fn is_finished(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire) && self.in_flight() == 0
    }
}

/// Finds a device of DPDK, or makes a virtual one.
fn attach(eal: &Eal, config: &EventConfig<'_>) -> Result<Attached, Error> {
    let (name, args) = config.device.split_once(',').unwrap_or((config.device, ""));
    let refuse = |problem: String| Error::Event { device: name.to_owned(), problem };
    let of = |text: &str| {
        CString::new(text).map_err(|_| refuse("its name or an argument holds a NUL byte".into()))
    };
    let (mut c_name, c_args) = (of(name)?, of(args)?);
    let attached = |id, made| Attached { id, made, is_started: false, _eal: eal.share() };
    let _one_at_a_time = HOTPLUG.lock().unwrap_or_else(PoisonError::into_inner);
    if !name.starts_with("event_")
        && let Some(id) = find(&c_name)
    {
        return Ok(attached(id, None));
    }
    is_driver(name).map_err(refuse)?;
    let &EventConfig { device, order, workers } = config;
    let is_ordered = order == EventOrder::Ordered;
    let kind = Kind { device: device.to_owned(), is_ordered, workers };
    if let Some(Idle { id, kind: before }) = Idle::take(&kind) {
        return Ok(attached(id, Some(Kind { workers, ..before })));
    }
    // There may be several of a name, the next of which replaces the present one: DPDK looks at the driver's name only.
    for serial in 1.. {
        if find(&c_name).is_none() {
            break;
        }
        c_name = of(&format!("{name}.{serial}"))?;
    }
    if !has_room() {
        let what = format!(
            "event device {name}, for which a start with it in the configuration reserves memory"
        );
        let errno = Errno::ENOMEM;
        return Err(Error::Memory { what, errno, memory: eal.memory().to_string() });
    }
    // SAFETY: the EAL is up; three C strings for the call.
    let result =
        unsafe { sys::rte_eal_hotplug_add(c"vdev".as_ptr(), c_name.as_ptr(), c_args.as_ptr()) };
    if result < 0 {
        let errno = Errno::from_raw(-result);
        return Err(refuse(format!("DPDK does not take it: {errno}")));
    }
    let id = find(&c_name).ok_or_else(|| refuse("it is no event device".into()))?;
    Ok(attached(id, Some(kind)))
}

/// Returns true if DPDK's memory has [`ROOM`] in one piece, on any NUMA node. It is tried: with hugepages the memory
/// grows by demand, so that its statistics do not tell.
fn has_room() -> bool {
    // SAFETY: a piece of memory without a name, which nobody but this function knows, or null; freeing null does nothing.
    unsafe {
        let piece = sys::rte_malloc(std::ptr::null(), ROOM, 0);
        sys::rte_free(piece);
        !piece.is_null()
    }
}

/// Most events that a device is to have inside; -1 where the device has no bound, which DPDK wants repeated.
fn events_limit(info: &sys::rte_event_dev_info) -> i32 {
    match info.max_num_events {
        0 => EVENTS_MOST as i32,
        most => most.min(EVENTS_MOST as i32),
    }
}

/// See [`NEARLY_FULL`].
fn nearly_full(info: &sys::rte_event_dev_info) -> u64 {
    let most = u64::try_from(events_limit(info)).unwrap_or(EVENTS_MOST as u64);
    most * NEARLY_FULL.0 / NEARLY_FULL.1
}

/// Checks that a name is that of a driver and a number.
fn is_driver(name: &str) -> Result<(), String> {
    let known = event_drivers();
    let driver = name.trim_end_matches(|last: char| last.is_ascii_digit());
    let is_named = name.starts_with("event_") && driver.len() < name.len();
    if is_named && (known.is_empty() || known.contains(driver)) {
        return Ok(());
    }
    let known: Vec<String> = known.iter().map(|driver| format!("{driver}0")).collect();
    let known = if known.is_empty() { "event_sw0, event_dsw0".into() } else { known.join(", ") };
    Err(format!(
        "not found; name a device that DPDK has found on the machine, or a virtual one: {known}"
    ))
}

/// Returns DPDK's number of the event device of this name.
fn find(name: &CStr) -> Option<u8> {
    // SAFETY: the EAL is up; a C string for the call.
    let id = unsafe { sys::rte_event_dev_get_dev_id(name.as_ptr()) };
    u8::try_from(id).ok()
}

fn no_order(order: EventOrder) -> String {
    let other = if order == EventOrder::Ordered { EventOrder::Atomic } else { EventOrder::Ordered };
    let (order, other) = (order.name(), other.name());
    format!("its driver does not schedule \"{order}\"; use order = \"{other}\", or event_sw0")
}

fn driver_of(info: &sys::rte_event_dev_info) -> String {
    if info.driver_name.is_null() {
        return "unknown".into();
    }
    // SAFETY: not null: a literal of the driver.
    unsafe { CStr::from_ptr(info.driver_name) }.to_string_lossy().into_owned()
}

/// The set-up of a device.
struct Setup<'a> {
    id: u8,
    name: &'a str,
    order: EventOrder,
}

/// The priority of a class's queue; the transmit queue has the highest.
fn priority_of(class: usize) -> u8 {
    (class * usize::from(u8::MAX) / CLASSES_MOST) as u8
}

impl Setup<'_> {
    fn refuse(&self, problem: impl Into<String>) -> Error {
        Error::Event { device: self.name.to_owned(), problem: problem.into() }
    }

    /// An error unless a call of DPDK has succeeded.
    fn done(&self, step: &str, result: i32) -> Result<(), Error> {
        match result {
            0.. => Ok(()),
            _ if result == -libc::EBUSY => Err(self.refuse(
                "it is in use; go to mode = \"run-to-completion\" before it is configured anew",
            )),
            _ => Err(self.refuse(format!("{step}: {}", Errno::from_raw(-result)))),
        }
    }

    fn info(&self) -> Result<sys::rte_event_dev_info, Error> {
        let mut info = MaybeUninit::<sys::rte_event_dev_info>::zeroed();
        // SAFETY: the device exists; the function writes the information, or fails.
        self.done("its capabilities cannot be read", unsafe {
            sys::rte_event_dev_info_get(self.id, info.as_mut_ptr())
        })?;
        // SAFETY: zeroed, which is a value of every field, and written.
        Ok(unsafe { info.assume_init() })
    }

    /// Returns the number of queues for packets that enter, if the device can do what is asked for.
    fn check(&self, info: &sys::rte_event_dev_info, workers: usize) -> Result<usize, Error> {
        let can = |bit: u32| info.event_dev_cap & bit != 0;
        if driver_of(info).contains("opdl") {
            // Its ports have one role each, so the receiver's cannot take packets and return them.
            return Err(self.refuse(
                "event_opdl knows only pipelines whose ports have one role each; use event_sw0 or event_dsw0",
            ));
        }
        let driver = driver_of(info);
        if driver.contains("dsw") && self.order == EventOrder::Ordered {
            // Refused here: its driver refuses when queues are set up, and frees what a device of former workers has
            // twice when such a half of a device is closed.
            return Err(self.refuse(no_order(self.order)));
        }
        let most = usize::from(info.max_event_ports).saturating_sub(1);
        let most = if driver.contains("sw") { most.min(IN_SOFTWARE_MOST) } else { most };
        if workers > most {
            let problem =
                format!("it has ports for {most} forwarders, not for {workers}; name fewer cores");
            return Err(self.refuse(problem));
        }
        let several = can(sys::SHIM_EVENT_QUEUE_QOS) && can(sys::SHIM_EVENT_MULTIPLE_QUEUE_PORT);
        let most = usize::from(info.max_event_queues).saturating_sub(1);
        let classes = if several { CLASSES_MOST.min(most) } else { 1 };
        if most == 0 { Err(self.refuse("it has one queue only")) } else { Ok(classes) }
    }

    fn configure(
        &self,
        info: &sys::rte_event_dev_info,
        (classes, workers): (usize, usize),
    ) -> Result<(), Error> {
        let events = events_limit(info);
        let depth = |most: u32| most.clamp(1, BURST_MAX as u32);
        let flows = info.max_event_queue_flows.clamp(1, FLOWS);
        let (dequeue, enqueue) = (
            depth(info.max_event_port_dequeue_depth.into()),
            depth(info.max_event_port_enqueue_depth),
        );
        // SAFETY: integers, for which zeros are values.
        let mut config: sys::rte_event_dev_config = unsafe { std::mem::zeroed() };
        config.dequeue_timeout_ns = info.min_dequeue_timeout_ns;
        config.nb_events_limit = events;
        config.nb_event_queues = (classes + 1) as u8;
        config.nb_event_ports = (workers + 1) as u8;
        config.nb_event_queue_flows = flows;
        config.nb_event_port_dequeue_depth = dequeue;
        config.nb_event_port_enqueue_depth = enqueue;
        config.nb_single_link_event_port_queues = 1;
        // SAFETY: the device exists and is stopped; the configuration is read.
        self.done("its configuration", unsafe { sys::rte_event_dev_configure(self.id, &config) })?;
        for class in 0..classes {
            self.set_up_queue(class as u8, (0, priority_of(class)), flows)?;
        }
        self.set_up_queue(classes as u8, (sys::SHIM_EVENT_QUEUE_SINGLE_LINK, 0), flows)?;
        // New events leave room for those that are inside: a worker can always forward.
        let threshold = if events < 0 { events } else { events - events / 4 };
        for port in 0..=workers {
            self.set_up_port(port as u8, info, (threshold, dequeue as u16, enqueue as u16))?;
        }
        let inward: Vec<u8> = (0..classes as u8).collect();
        self.link(0, &[classes as u8])?;
        (1..=workers).try_for_each(|worker| self.link(worker as u8, &inward))
    }

    fn set_up_queue(
        &self,
        queue: u8,
        (flags, priority): (u32, u8),
        flows: u32,
    ) -> Result<(), Error> {
        let is_transmit = flags != 0;
        // SAFETY: integers, for which zeros are values.
        let mut config: sys::rte_event_queue_conf = unsafe { std::mem::zeroed() };
        config.nb_atomic_flows = flows;
        config.nb_atomic_order_sequences = EVENTS_MOST as u32;
        config.event_queue_cfg = flags;
        config.priority = priority;
        config.schedule_type = match is_transmit {
            true => sys::RTE_SCHED_TYPE_ATOMIC as u8,
            false => self.order.schedule_type(),
        };
        // SAFETY: the device is configured with this queue, and stopped.
        let result = unsafe { sys::rte_event_queue_setup(self.id, queue, &config) };
        if result == -libc::ENOTSUP && !is_transmit {
            return Err(self.refuse(no_order(self.order)));
        }
        self.done(&format!("event queue {queue}"), result)
    }

    fn set_up_port(
        &self,
        port: u8,
        info: &sys::rte_event_dev_info,
        (threshold, dequeue, enqueue): (i32, u16, u16),
    ) -> Result<(), Error> {
        // SAFETY: integers, for which zeros are values.
        let mut config: sys::rte_event_port_conf = unsafe { std::mem::zeroed() };
        config.new_event_threshold = threshold;
        config.dequeue_depth = dequeue;
        config.enqueue_depth = enqueue;
        if info.event_dev_cap & sys::SHIM_EVENT_IMPLICIT_RELEASE_DISABLE != 0 {
            config.event_port_cfg |= sys::SHIM_EVENT_PORT_DISABLE_IMPL_REL;
        }
        // SAFETY: the device is configured with this port, and stopped.
        self.done(&format!("event port {port}"), unsafe {
            sys::rte_event_port_setup(self.id, port, &config)
        })
    }

    fn link(&self, port: u8, queues: &[u8]) -> Result<(), Error> {
        // SAFETY: the port is set up, and so are the queues, whose numbers are read.
        let linked = unsafe {
            sys::rte_event_port_link(
                self.id,
                port,
                queues.as_ptr(),
                std::ptr::null(),
                queues.len() as u16,
            )
        };
        if usize::try_from(linked).is_ok_and(|linked| linked == queues.len()) {
            return Ok(());
        }
        Err(self.refuse(format!("event port {port} cannot serve {} queues", queues.len())))
    }

    /// DPDK's number of the service that schedules, if the device needs one.
    fn service(&self) -> Option<u32> {
        let mut service = 0;
        // SAFETY: the device exists; a number is written, or the call fails.
        let result = unsafe { sys::rte_event_dev_service_id_get(self.id, &mut service) };
        (result == 0).then_some(service)
    }

    fn start(&self, service: Option<u32>) -> Result<(), Error> {
        if let Some(service) = service {
            // SAFETY: the service exists; a thread of ours runs it, which DPDK does not know.
            unsafe {
                self.done("its service", sys::rte_service_runstate_set(service, 1))?;
                self.done("its service", sys::rte_service_set_runstate_mapped_check(service, 0))?;
            }
        }
        // SAFETY: the device exists; the callback is a function without an argument.
        unsafe {
            sys::rte_event_dev_stop_flush_callback_register(
                self.id,
                Some(free_flushed),
                std::ptr::null_mut(),
            );
            self.done("it does not start", sys::rte_event_dev_start(self.id))
        }
    }
}

/// Frees the packet of an event that is inside when its device stops.
unsafe extern "C" fn free_flushed(_device: u8, event: sys::rte_event, _: *mut c_void) {
    // SAFETY: both describe the same 16 bytes, of which each value is valid.
    let event = unsafe { std::mem::transmute::<sys::rte_event, Event>(event) };
    if event.packet != RawMbuf::NULL {
        // SAFETY: packets in the device are its own.
        unsafe { free_bulk(&mut [event.packet]) };
    }
}

/// A port of an event device. It can move between threads, but not be shared.
pub struct EventPort {
    device: Arc<Shared>,
    port: u8,
    /// The events dequeued last, `count` of them, until they are completed.
    events: [Event; BURST_MAX],
    count: usize,
    /// Tags of their packets when they came.
    tags: [u64; BURST_MAX],
    /// Events whose packet is with this port, a bit each.
    here: u64,
    /// Slots of the burst that was filled last.
    loaded: u64,
    /// Events that are to be forwarded.
    forwarded: u64,
    /// The event of each slot of the burst filled last.
    places: [u8; BURST_MAX],
    lost: Box<PacketList>,
    not_sync: PhantomData<Cell<()>>,
}

// SAFETY: events and their packets belong to no thread.
unsafe impl Send for EventPort {}

/// Packets of one source, see [`EventPort::load`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The number that the receiver has given to their source.
    pub source: u16,
    /// Packets that no burst can hold, see [`Burst::unusable`].
    pub unusable: usize,
}

impl EventPort {
    fn new(device: Arc<Shared>, port: u8) -> Self {
        Self {
            device,
            port,
            events: [Event::NONE; BURST_MAX],
            count: 0,
            tags: [0; BURST_MAX],
            here: 0,
            loaded: 0,
            forwarded: 0,
            places: [0; BURST_MAX],
            lost: Box::default(),
            not_sync: PhantomData,
        }
    }

    /// Returns true if the device has little room left for packets that enter.
    pub fn is_nearly_full(&self) -> bool {
        self.device.in_flight() > self.device.nearly_full
    }

    /// Returns its device.
    pub fn device(&self) -> EventDevice {
        EventDevice(self.device.clone())
    }

    /// Enqueues events, and returns how many the device has taken.
    fn enqueue(&mut self, events: &[Event]) -> usize {
        // SAFETY: `&mut self` of the only user of this port; the device is started, and copies the events.
        let taken = unsafe {
            sys::rte_event_enqueue_burst(
                self.device.attached.id,
                self.port,
                events.as_ptr().cast(),
                events.len() as u16,
            )
        };
        usize::from(taken).min(events.len())
    }

    /// Passes the packets of `mask` to the device, each with its flow and class, and a tag: the number of its source, below
    /// 32,768, in 16 bits, then 48 bits of the caller's. `says_more`: their burst has results of their device. Returns the
    /// packets that the device does not take; the burst still has them.
    pub fn enter(
        &mut self,
        burst: &mut Burst,
        mask: u64,
        says_more: bool,
        describe: impl Fn(&Burst, usize) -> (u32, u8),
        mut tag: impl FnMut(u32, u8) -> u64,
    ) -> u64 {
        let mask = mask & burst.owned();
        let (mut events, mut count) = ([Event::NONE; BURST_MAX], 0);
        let schedule = self.device.order.schedule_type();
        let more = if says_more { u64::from(SAYS_MORE) } else { 0 };
        for slot in slots(mask) {
            let (flow, class) = describe(burst, slot);
            let (flow, class) = (flow % FLOWS, class.min(self.device.classes as u8 - 1));
            burst.set_tag(slot, tag(flow, class) | more);
            events[count] = Event::new(flow, (class, schedule), burst.raw(slot));
            count += 1;
        }
        // Before they enter: whoever sees one leave has seen it enter.
        self.device.entered.add(count);
        let mut taken = 0;
        while taken < count {
            match self.enqueue(&events[taken..count]) {
                0 => break,
                now => taken += now,
            }
        }
        self.device.entered.add((count - taken).wrapping_neg());
        let gone = slots(mask).take(taken).fold(0, |gone, slot| gone | 1 << slot);
        // SAFETY: the device has these packets.
        unsafe { burst.give_up(gone) };
        mask & !gone
    }

    /// Dequeues up to `max` events and returns their number; 0 while earlier ones are not completed.
    pub fn dequeue(&mut self, max: usize) -> usize {
        if self.count > 0 {
            return 0;
        }
        let max = max.min(BURST_MAX) as u16;
        // SAFETY: `&mut self` of the only user of this port; at most `max` events are written.
        self.count = usize::from(unsafe {
            let (device, events) = (self.device.attached.id, self.events.as_mut_ptr().cast());
            sys::rte_event_dequeue_burst(device, self.port, events, max, 0)
        });
        self.forwarded = 0;
        self.here = if self.count == 0 { 0 } else { u64::MAX >> (BURST_MAX - self.count) };
        for (event, tag) in self.events[..self.count].iter().zip(&mut self.tags) {
            // SAFETY: the packets of dequeued events are ours.
            *tag = unsafe { event.packet.tag() };
        }
        self.count
    }

    /// Moves the packets of the next source among the dequeued events to an empty burst, in order; `None` if there are no
    /// more.
    pub fn load(&mut self, burst: &mut Burst) -> Option<Loaded> {
        if self.here == 0 {
            return None;
        }
        let of = |place: usize| self.tags[place] & SOURCE;
        let source = of(self.here.trailing_zeros() as usize);
        let mask = slots(self.here).filter(|&place| of(place) == source);
        let mask = mask.fold(0, |mask, place| mask | 1_u64 << place);
        let count = self.fill(burst, mask)?;
        self.here &= !mask;
        // SAFETY: the burst was empty, and its first entries are packets that were ours.
        let unusable = unsafe {
            match source as u16 & SAYS_MORE {
                0 => burst.received::<false>(count),
                _ => burst.received::<true>(count),
            }
        };
        Some(Loaded { source: source as u16 & !SAYS_MORE, unusable })
    }

    /// Puts packets of these events into a burst's space.
    fn fill(&mut self, burst: &mut Burst, mask: u64) -> Option<usize> {
        let space = burst.space()?;
        let mut count = 0;
        for place in slots(mask) {
            space[count] = self.events[place].packet;
            self.places[count] = place as u8;
            count += 1;
        }
        self.loaded = if count == 0 { 0 } else { u64::MAX >> (BURST_MAX - count) };
        Some(count)
    }

    /// Takes the packets of `mask` out of the burst that [`Self::load`] has filled, to be sent by these egress ports.
    /// Returns those taken: a step may have put in others, which are of no event.
    pub fn forward(&mut self, burst: &mut Burst, mask: u64, egress: &[u16; BURST_MAX]) -> u64 {
        let mask = mask & burst.owned() & self.loaded;
        let to = (self.device.classes as u8, sys::RTE_SCHED_TYPE_ATOMIC as u8);
        for slot in slots(mask) {
            let place = usize::from(self.places[slot]) % BURST_MAX;
            burst.set_tag(slot, self.tags[place] & !SOURCE | u64::from(egress[slot]));
            let event = Event { packet: burst.raw(slot), ..self.events[place] };
            self.events[place] = event.forwarded(to);
            self.forwarded |= 1 << place;
        }
        // SAFETY: the events have these packets.
        unsafe { burst.give_up(mask) };
        mask
    }

    /// Moves the packets of all dequeued events to an empty burst, in order; returns the number of those that no burst can
    /// hold, see [`Burst::unusable`].
    pub fn take(&mut self, burst: &mut Burst) -> usize {
        let Some(count) = self.fill(burst, self.here) else { return 0 };
        self.here = 0;
        // SAFETY: the burst was empty, and its first entries are packets that were ours.
        unsafe { burst.received::<false>(count) }
    }

    /// Returns the packets that [`Self::complete`] lost last. Packets that are not taken are freed later.
    pub fn lost(&mut self) -> &mut PacketList {
        &mut self.lost
    }

    /// Completes all dequeued events, in their order; returns the number of packets to be forwarded that are lost,
    /// because the device did not take them for a second.
    pub fn complete(&mut self) -> usize {
        let count = std::mem::take(&mut self.count);
        let mut events = self.events;
        for place in slots(!self.forwarded).take_while(|&place| place < count) {
            self.drop_packet(place);
            events[place] = events[place].released();
        }
        let done = self.enqueue_all(&events[..count]);
        let lost = if done < count { self.lose(&events[done..count]) } else { 0 };
        let forwarded = self.forwarded.count_ones() as usize - lost;
        self.forwarded = 0;
        if count > 0 {
            let port = usize::from(self.port);
            self.device.released[port].add(count - forwarded);
            self.device.completed[port].add(count);
        }
        lost
    }

    /// Keeps the packets of events that the device has not taken; returns their number.
    #[cold]
    fn lose(&mut self, events: &[Event]) -> usize {
        self.lost.free_tail(0);
        for event in events.iter().filter(|event| event.packet != RawMbuf::NULL) {
            // SAFETY: the device has not taken the packet, so it is this port's. The list has room for all events.
            let _ = self.lost.push(unsafe { Mbuf::from_raw(event.packet) });
        }
        self.lost.len()
    }

    /// Frees the packet of a dequeued event that no burst has got.
    fn drop_packet(&mut self, place: usize) {
        if self.here >> place & 1 != 0 {
            self.here &= !(1 << place);
            // SAFETY: the packet is this port's.
            unsafe { free_bulk(&mut [self.events[place].packet]) };
        }
    }

    /// Enqueues events that the device has scheduled, and has room for as soon as it has done its work.
    fn enqueue_all(&mut self, events: &[Event]) -> usize {
        let (mut done, mut refusals, mut since) = (0, 0, 0);
        while done < events.len() {
            let now = self.enqueue(&events[done..]);
            done += now;
            if now > 0 {
                refusals = 0;
                continue;
            }
            refusals += 1;
            if refusals == 1 {
                since = tsc();
            } else if refusals % SPINS == 0 {
                if tsc() - since > PATIENCE_S * tsc_hz() {
                    break;
                }
                std::thread::yield_now();
            }
            std::hint::spin_loop();
        }
        done
    }
}

impl Drop for EventPort {
    fn drop(&mut self) {
        self.complete();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;

    use super::*;
    use crate::{Mbuf, Mempool, testing};

    /// Flows in a test.
    const STREAMS: u32 = 7;

    /// Devices are large, and the next test uses those of the last.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

    fn alone() -> impl Drop {
        ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a device for so many workers.
    fn open(device: &str, order: EventOrder, workers: usize) -> EventPorts {
        EventDevice::open(testing::eal(), &EventConfig { device, order, workers }).unwrap()
    }

    fn refusal(device: &str, order: EventOrder, workers: usize) -> String {
        let config = EventConfig { device, order, workers };
        EventDevice::open(testing::eal(), &config).map(drop).unwrap_err().to_string()
    }

    /// A packet that says its number.
    fn packet(pool: &Mempool, number: u32) -> Option<Mbuf> {
        let mut frame = [0; 60];
        frame[20..24].copy_from_slice(&number.to_be_bytes());
        pool.copy_of(&frame)
    }

    fn number(burst: &Burst, slot: usize) -> u32 {
        u32::from_be_bytes(burst.head(slot)[20..24].try_into().unwrap())
    }

    /// Runs the scheduler of a device, if it needs one, until `end`.
    fn schedule(device: &EventDevice, end: &AtomicBool) {
        let _registration = testing::eal().register_thread().unwrap();
        while device.needs_scheduler() && !end.load(Ordering::Relaxed) {
            device.schedule();
            thread::yield_now();
        }
    }

    /// A worker: every fifth packet ends with it, all others are forwarded with the number of its port as egress. Some
    /// batches take longer than others.
    fn work(mut port: EventPort, ended: &AtomicU32, finished: &Mutex<Vec<u32>>) {
        let (mut burst, device, mut rounds) = (Burst::new(), port.device(), 0_u32);
        while !device.is_finished() {
            if port.dequeue(8) == 0 {
                thread::yield_now();
                continue;
            }
            rounds += 1;
            if rounds % 3 == u32::from(port.port) {
                (0..rounds % 5).for_each(|_| thread::yield_now());
            }
            while let Some(loaded) = port.load(&mut burst) {
                assert!(loaded.source < 2 && loaded.unusable == 0);
                let numbers = (0..burst.len()).map(|slot| number(&burst, slot));
                finished.lock().unwrap().extend(numbers);
                let ends =
                    slots(burst.owned()).filter(|&slot| number(&burst, slot).is_multiple_of(5));
                let ends = ends.fold(0, |ends, slot| ends | 1 << slot);
                port.forward(&mut burst, !ends, &[port.port.into(); BURST_MAX]);
                ended.fetch_add(burst.free(u64::MAX) as u32, Ordering::Relaxed);
            }
            assert_eq!(port.complete(), 0);
        }
    }

    /// Takes what the device returns, in order.
    fn take(port: &mut EventPort, burst: &mut Burst, back: &mut Vec<u32>) -> usize {
        let count = port.dequeue(64);
        assert_eq!(port.take(burst), 0);
        for slot in 0..count {
            assert!((1..=3).contains(&(burst.tag(slot) as u16)), "the egress");
            assert_eq!(
                (burst.tag(slot) >> 16) as u32,
                number(burst, slot),
                "what the receiver said"
            );
            back.push(number(burst, slot));
        }
        burst.free(u64::MAX);
        assert_eq!(port.complete(), 0);
        count
    }

    /// Sends numbered packets of several flows, from two sources, through a device and three workers. Returns those that come
    /// back in their order, and the number that ended with a worker.
    fn run(device: &str, order: EventOrder, packets: u32) -> (Vec<u32>, u32) {
        let pool = testing::pool(2047);
        let EventPorts { device, mut receiver, workers } = open(device, order, 3);
        let (end, ended, finished) = (AtomicBool::new(false), AtomicU32::new(0), Mutex::default());
        let mut back = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| schedule(&device, &end));
            for port in workers {
                scope.spawn(|| work(port, &ended, &finished));
            }
            let (mut burst, mut next) = (Burst::new(), 0);
            while next < packets || device.in_flight() > 0 {
                let first = next;
                while next < packets
                    && burst.len() < 16
                    && let Some(packet) = packet(&pool, next)
                {
                    burst.put(packet).unwrap();
                    next += 1;
                }
                let describe = |burst: &Burst, slot| {
                    (number(burst, slot) % STREAMS, (number(burst, slot) % STREAMS % 2) as u8)
                };
                let mut numbers = first..;
                let source = u64::from(first / 16 % 2);
                let tag = |_, _| source | u64::from(numbers.next().unwrap()) << 16;
                let full = receiver.enter(&mut burst, u64::MAX, false, describe, tag);
                if full != 0 {
                    // Packets that it does not take are the last: they are sent again.
                    next -= full.count_ones();
                    burst.free(full);
                }
                if take(&mut receiver, &mut burst, &mut back) == 0 {
                    thread::yield_now();
                }
            }
            device.set_closed(true);
            end.store(true, Ordering::Relaxed);
        });
        drop(receiver);
        drop(device);
        assert_eq!(pool.leaked(), 0);
        let mut finished = finished.into_inner().unwrap();
        finished.sort_unstable();
        assert!(finished.into_iter().eq(0..packets), "each was with one worker, once");
        (back, ended.into_inner())
    }

    fn flow(of: u32, back: &[u32]) -> Vec<u32> {
        back.iter().copied().filter(|number| number % STREAMS == of).collect()
    }

    #[test]
    fn every_packet_returns_or_ends_and_flows_stay_in_order() {
        let _alone = alone();
        const PACKETS: u32 = 20_000;
        for (device, order) in [
            ("event_sw0", EventOrder::Ordered),
            ("event_sw0", EventOrder::Atomic),
            ("event_dsw0", EventOrder::Atomic),
            ("event_sw0", EventOrder::Parallel),
            ("event_dsw0", EventOrder::Parallel),
        ] {
            let (mut back, ended) = run(device, order, PACKETS);
            assert_eq!((back.len() as u32, ended), (PACKETS / 5 * 4, PACKETS / 5));
            if order != EventOrder::Parallel {
                (0..STREAMS)
                    .for_each(|of| assert!(flow(of, &back).is_sorted(), "{device} {order:?}"));
            }
            back.sort_unstable();
            back.dedup();
            assert_eq!(back.len() as u32, PACKETS / 5 * 4, "none twice");
        }
    }

    #[test]
    fn what_is_inside_when_it_closes_returns_to_its_pool() {
        let _alone = alone();
        let pool = testing::pool(255);
        for (device, order) in
            [("event_sw0", EventOrder::Ordered), ("event_dsw0", EventOrder::Atomic)]
        {
            let EventPorts { device, mut receiver, mut workers } = open(device, order, 3);
            let mut burst = Burst::new();
            (0..40).for_each(|of| _ = burst.put(packet(&pool, of).unwrap()).unwrap());
            let left = receiver.enter(&mut burst, u64::MAX, false, |_, _| (1, 0), |_, _| 0);
            assert_eq!((left, device.in_flight(), pool.in_use()), (0, 40, 40));
            // Some with a worker, of which some are in a burst.
            let _registration = testing::eal().register_thread().unwrap();
            let count = testing::within_a_minute("scheduled", || {
                device.schedule();
                receiver.dequeue(0);
                let count = workers.iter_mut().map(|port| port.dequeue(8)).max().unwrap();
                (count > 0).then_some(count)
            });
            assert!(count <= 8 && device.in_flight() == 40);
            workers.iter_mut().for_each(|port| _ = port.load(&mut burst));
            drop((receiver, workers, device));
            burst.free(u64::MAX);
            assert_eq!(pool.leaked(), 0);
        }
    }

    #[test]
    fn a_full_device_leaves_the_rest_in_the_burst() {
        let _alone = alone();
        let pool = testing::pool(4095);
        let EventPorts { device, mut receiver, workers } =
            open("event_sw0", EventOrder::Ordered, 3);
        let (mut burst, mut entered) = (Burst::new(), 0);
        let full = loop {
            (0..64).for_each(|of| _ = burst.put(packet(&pool, of).unwrap()).unwrap());
            let full = receiver.enter(&mut burst, u64::MAX, false, |_, _| (1, 0), |_, _| 0);
            entered += 64 - u64::from(full.count_ones());
            if full != 0 {
                break full;
            }
        };
        assert!((1024..EVENTS_MOST as u64).contains(&entered), "{entered}");
        assert_eq!((device.in_flight(), burst.owned()), (entered, full));
        assert_eq!(burst.free(full) as u32, full.count_ones());
        drop((receiver, workers, device));
        assert_eq!(pool.leaked(), 0);
    }

    #[test]
    fn what_a_device_cannot_do_is_refused_with_the_way_out() {
        let _alone = alone();
        let dsw = refusal("event_dsw0", EventOrder::Ordered, 3);
        let expected = "event device event_dsw0: its driver does not schedule \"ordered\"; use order = \"atomic\", or \
                        event_sw0";
        assert_eq!(dsw, expected);
        let opdl = refusal("event_opdl0", EventOrder::Atomic, 2);
        assert!(opdl.ends_with("use event_sw0 or event_dsw0"), "{opdl}");
        for name in ["event_swift0", "event_sw", "eth0", ""] {
            let unknown = refusal(name, EventOrder::Atomic, 2);
            let start =
                format!("event device {name}: not found; name a device that DPDK has found");
            assert!(unknown.starts_with(&start) && unknown.contains("event_sw0"), "{unknown}");
        }
        let many = refusal("event_sw0", EventOrder::Atomic, 64);
        assert!(many.contains("ports for 20 forwarders, not for 64; name fewer cores"), "{many}");
        let nul = refusal("event_sw0\0", EventOrder::Atomic, 1);
        assert!(nul.contains("NUL"), "{nul}");
        // Refusals leave nothing behind.
        drop(open("event_dsw0", EventOrder::Atomic, 3));
        // The next one is there before the present one is closed.
        let first = open("event_sw0", EventOrder::Atomic, 3);
        let next = open("event_sw0", EventOrder::Parallel, 3);
        drop(first);
        drop((next, open("event_sw0", EventOrder::Ordered, 3)));
        // One that has been closed is used again.
        let [first, again] = [(); 2]
            .map(|()| open("event_dsw0", EventOrder::Parallel, 3).receiver.device.attached.id);
        assert_eq!(first, again);
    }

    #[test]
    fn events_have_the_layout_of_dpdk() {
        let event = Event::new(0x1fff, (5, 2), RawMbuf::NULL).forwarded((6, 1));
        // SAFETY: both describe the same 16 bytes, of which each value is valid.
        let theirs = unsafe { std::mem::transmute::<Event, sys::rte_event>(event) };
        // SAFETY: plain numbers.
        let of = unsafe { &theirs.__bindgen_anon_1.__bindgen_anon_1 };
        assert_eq!((of.flow_id(), of.event_type()), (0x1fff, sys::RTE_EVENT_TYPE_CPU));
        assert_eq!(u32::from(of.op()), sys::RTE_EVENT_OP_FORWARD);
        assert_eq!((of.sched_type(), of.queue_id, of.priority), (1, 6, 128));
    }
}
