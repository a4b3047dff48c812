/* What programs know about an interface, and about the VLANs on it, as the process sets it. */

struct settings {
	u8 mac[6];
	u16 longest; /* bytes of an IP packet */
	u8 ip4, ip6; /* forwarding is on */
	u8 generic; /* the kernel's stack runs the program, and runs it for returned frames as well */
	u8 interface; /* the port's number */
	u8 flows; /* packets of flows only */
	u8 partial; /* checksums may be left to the device */
	u16 way; /* the number of the interface or VLAN as a way out */
	u32 device; /* the kernel's number of the interface or VLAN device */
	u8 bond; /* the interface is a bond */
	u8 unused[3];
};

/* 802.1Q: the tag's bytes, its Ethertype, the bits of the identifier. */
enum { TAG = 4, ETHERTYPE_VLAN = 0x8100, VLAN_ID = 0x0fff, VLAN_IDS = 4096 };

/* The VLANs of the interface, by identifier; frames of others are the kernel's. */
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[VLAN_IDS];
	int (*map_flags)[BPF_F_NO_PREALLOC];
	u32 *key;
	struct settings *value;
} vlans SECTION(".maps");
