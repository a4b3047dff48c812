// Answers of the API as far as pages read them: see the OpenAPI document, `turnpike api --openapi`.

interface Session { client: string; role: "read" | "operate" | "configure" }

interface Status { version: string; dpdk: string; uptime_s: number; configuration: number; unconfirmed: boolean; tsc_hz: number }

interface Counters {
  received: number; originated: number; replicated: number; sent: number; to_host: number; dropped_total: number;
  in_flight: number; dropped_by_step: Record<string, Record<string, number>>;
}

interface Forwarder {
  number: number; core: number; control?: boolean; node?: number; busy_percent: number; packets: number; bursts: number;
  busy_cycles: number; idle_cycles: number; rx: string[]; tx: string[];
  waiting: { wait: string; blocking: boolean };
  interference?: { involuntary_switches: number; waited_us: number; stolen_us: number };
}

interface Forwarders { forwarders: Forwarder[]; control: number[]; moved: number; advice: string[] }

interface Port {
  name: string; device: string; driver: string; link: string; rx_packets: number; rx_bytes: number; tx_packets: number;
  tx_bytes: number; rx_missed: number; rx_nombuf: number; rx_errors: number; tx_errors: number; rx_queues: number;
  tx_queues: number; troubles?: string[]; link_details: { speed_mbps?: number };
}

interface Interface {
  name: string; kind: string; parent?: string; tag?: { protocol: string; id: number }; mac: string; vrf?: string;
  addresses: string[]; link: string; mtu: number; rx_packets: number; rx_bytes: number; tx_packets: number;
  tx_bytes: number; host?: { state: string; reason?: string };
}

interface Families { ipv4: number; ipv6: number }

interface Vrf { name: string; ports: string[]; routes: Families; fib: Families }

interface Overview {
  at_us: number; status: Status; counters: Counters; forwarders: Forwarders; ports: Port[]; interfaces?: Interface[];
}

interface Output { name: string; to: string; packets: number }

interface Step { name: string; packets: number; outputs: Output[] }

interface Graph { steps: Step[] }

interface Path { port?: string; via?: string; vrf?: string; weight?: number }

interface Route {
  vrf?: string; prefix: string; source: string; type: string; metric: number; active: boolean; inactive?: string;
  paths: Path[];
}

interface RoutePage { routes: Route[]; next: string | null }

interface RouteAnswer {
  address: string; prefix: string | null; source: string | null; type: string; candidates: Route[];
  paths: { port: string; via: string | null; weight?: number; mac: string | null; state: string; taken?: boolean }[];
}

interface Neighbour { address: string; port: string; mac: string | null; state: string; static: boolean; queued: number }

interface Rule {
  number: number; name: string | null; matches: string; action: string; police: string | null; packets: number;
  bytes: number; last_s: number | null; logged_s?: number;
}

interface Filter {
  name: string; inward: string[]; outward: string[]; rules: Rule[]; default: string; default_packets: number;
  default_bytes: number;
}

interface PrefixSet { name: string; elements: { prefix: string; by: string; remaining_s: number | null }[] }

interface Verdict { rule: Rule | null; action: string; why: string }

interface InterfaceQueue {
  interface: string; queue: string; shape?: string;
  classes: {
    name: string; waiting: number; waiting_bytes: number; sent: number; full: number; red: number; codel: number;
    delay_us: number; delay_most_us: number;
  }[];
}

interface HistoryEntry {
  number: number; time_s: number; file: string; origin: string; summary: string; state: string | null;
  confirm_s: number | null;
}

interface Configuration { number: number; file: string; text: string }

interface ChangePlan {
  changes: { what: string; from: string | null; to: string | null; live: boolean; reopens?: boolean; because?: string }[];
  routes: { added: number; removed: number; changed: number }; restart: boolean;
}

interface Applied { number: number; summary: string; confirm_s: number | null; pause_us: number | null }

interface Trace {
  packets: {
    forwarder: number; interface: string; packet: string; length: number; end: string;
    steps: { step: string; output: string; notes: string[] }[];
  }[];
  lost: number;
}

/** A page that is shown. */
interface Shown {
  /** Its content. */
  element: HTMLElement;
  /** Takes counts of each second. */
  live?: (overview: Overview) => void;
  /** Takes another query of the address: `#/routes?vrf=blue`. */
  query?: (query: URLSearchParams) => void;
}

/** The means of a page. */
interface Context {
  /** True if the client has the role. */
  may: (role: "read" | "operate" | "configure") => boolean;
  /** Ends with the page. */
  signal: AbortSignal;
  /** The last counts, if there are any. */
  overview: Overview | null;
  /** Calls a function now and after each pause, while the page is shown and visible. */
  every: (seconds: number, ask: () => Promise<void>) => void;
  /** Calls a function at once, and shows its failure. */
  now: (ask: () => Promise<void>) => Promise<void>;
  /** Says something to the user, without a place of its own on the page. */
  say: (text: string) => void;
}

interface Page {
  title: string;
  /** The interfaces that are not ports belong to the counts of each second. */
  interfaces?: boolean;
  show: (context: Context, query: URLSearchParams) => Shown;
}
