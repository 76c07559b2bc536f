// Package address says where a process listens, and at which of its addresses
// others are told to find it.
package address

import (
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Which address a process is reached at. In order: the interfaces the user
// names; the address from which the root's host is reached; any address of an
// interface that isn't a bridge of containers or virtual machines; such a
// bridge; and loopback only when there is nothing else, or when the whole job
// is at loopback addresses. Link-local addresses are never taken: they mean
// nothing without the interface of the process that dials.
//
// NCCL: ncclFindInterfaces (src/misc/socket.cc), which takes the first
// interface by name instead of asking for the route.

// NIC is one address of one running interface.
type NIC struct {
	Name string
	Addr netip.Addr
}

// Local lists the addresses of the running interfaces, IPv4 first within
// each interface.
func Local() ([]NIC, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list network interfaces: %w", err)
	}
	var v4, v6 []NIC
	for _, i := range ifs {
		if i.Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // the interface went away
		}
		for _, a := range addrs {
			prefix, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, ok := netip.AddrFromSlice(prefix.IP)
			if !ok {
				continue
			}
			if ip = ip.Unmap(); ip.Is4() {
				v4 = append(v4, NIC{i.Name, ip})
			} else {
				v6 = append(v6, NIC{i.Name, ip})
			}
		}
	}
	return append(v4, v6...), nil
}

// Filter is the parsed form of NCCL_SOCKET_IFNAME.
type Filter struct {
	text  string
	rules []ifRule
}

type ifRule struct {
	name    string
	exclude bool // '^'
	exact   bool // '='
}

// ParseInterfaces reads a comma list of interface name prefixes. '^' before one
// excludes and '=' means the whole name; before the first they hold for the
// whole list, as in NCCL. With only exclusions everything else is allowed.
func ParseInterfaces(text string) (Filter, error) {
	f := Filter{text: text}
	if text == "" {
		return f, nil
	}
	var all ifRule
	for i, item := range strings.Split(text, ",") {
		r := all
		r.name = strings.TrimSpace(item)
		if rest, ok := strings.CutPrefix(r.name, "^"); ok {
			r.name, r.exclude = rest, true
		}
		if rest, ok := strings.CutPrefix(r.name, "="); ok {
			r.name, r.exact = rest, true
		}
		if r.name == "" || strings.ContainsAny(r.name, "^= \t") {
			return f, fmt.Errorf("interfaces %q: %w: item %q; want a list as in \"eth,=ib0\" or \"^docker,lo\"", text, ErrConfig, item)
		}
		if i == 0 {
			all = ifRule{exclude: r.exclude, exact: r.exact}
		}
		f.rules = append(f.rules, r)
	}
	return f, nil
}

// Allows reports whether the user wants interfaces of this name.
func (f Filter) Allows(name string) bool {
	any, included := true, false
	for _, r := range f.rules {
		match := strings.HasPrefix(name, r.name)
		if r.exact {
			match = name == r.name
		}
		if r.exclude {
			if match {
				return false
			}
			continue
		}
		any = false
		included = included || match
	}
	return any || included
}

// Address families, by NCCL's names.
const (
	FamilyIPv4 = "AF_INET"
	FamilyIPv6 = "AF_INET6"
)

// CheckFamily refuses what is neither a family nor empty, which means both.
func CheckFamily(family string) error {
	switch family {
	case "", FamilyIPv4, FamilyIPv6:
		return nil
	}
	return fmt.Errorf("address family %q: %w: want %s, %s or nothing", family, ErrConfig, FamilyIPv4, FamilyIPv6)
}

// Network is package net's name for TCP of a family.
func Network(family string) string {
	switch family {
	case FamilyIPv4:
		return "tcp4"
	case FamilyIPv6:
		return "tcp6"
	}
	return "tcp"
}

// FamilyAllows reports whether ip is of the family.
func FamilyAllows(family string, ip netip.Addr) bool {
	return family == "" || (family == FamilyIPv4) == ip.Is4()
}

// rankNIC orders interfaces as far as their names tell: 0 is best.
func rankNIC(n NIC) int {
	switch {
	case n.Addr.IsLoopback():
		return 3
	case strings.HasPrefix(n.Name, "virbr"):
		return 2
	case strings.HasPrefix(n.Name, "docker"), strings.HasPrefix(n.Name, "br-"), strings.HasPrefix(n.Name, "veth"),
		strings.HasPrefix(n.Name, "cni"), strings.HasPrefix(n.Name, "cali"):
		return 1
	}
	return 0
}

// Usable is the addresses that may be told to others, the best first. Loopback
// is among them only when the user asks for its interface by name, or when it
// is all there is.
func Usable(nics []NIC, f Filter, family string) []NIC {
	var byRank [4][]NIC
	for _, n := range nics {
		if !f.Allows(n.Name) || !FamilyAllows(family, n.Addr) {
			continue
		}
		if n.Addr.IsLinkLocalUnicast() || n.Addr.IsMulticast() || n.Addr.IsUnspecified() {
			continue
		}
		if !f.names(n.Name) {
			byRank[rankNIC(n)] = append(byRank[rankNIC(n)], n)
		} else {
			byRank[0] = append(byRank[0], n)
		}
	}
	out := append(append(byRank[0], byRank[1]...), byRank[2]...)
	if len(out) == 0 {
		out = byRank[3]
	}
	return out
}

// names reports whether an including rule of the user's matches.
func (f Filter) names(name string) bool {
	for _, r := range f.rules {
		if !r.exclude && (name == r.name || !r.exact && strings.HasPrefix(name, r.name)) {
			return f.Allows(name)
		}
	}
	return false
}

// Choose is the addresses to advertise, the best first. routed is the
// address from which this host reaches the root's, if known. When the root is on
// this host that says nothing about how others come here, and all addresses are
// advertised. loopbackJob says that the root is at loopback addresses only, so
// that all of the job is on this host.
func Choose(nics []NIC, f Filter, family string, routed netip.Addr, rootHere, loopbackJob bool) ([]NIC, error) {
	routed = routed.Unmap()
	if loopbackJob && len(f.rules) == 0 {
		if routed.IsLoopback() && FamilyAllows(family, routed) {
			return []NIC{{"loopback", routed}}, nil
		}
		for _, n := range nics {
			if n.Addr.IsLoopback() && FamilyAllows(family, n.Addr) {
				return []NIC{n}, nil
			}
		}
	}
	candidates := Usable(nics, f, family)
	if len(candidates) == 0 {
		return nil, NoneUsable(nics, f, family)
	}
	if rootHere {
		return candidates, nil
	}
	for _, n := range candidates {
		if n.Addr == routed {
			return []NIC{n}, nil
		}
	}
	return candidates[:1], nil
}

// NoneUsable is the error for when Usable finds nothing.
func NoneUsable(nics []NIC, f Filter, family string) error {
	var have []string
	for _, n := range nics {
		have = append(have, n.Name+" "+n.Addr.String())
	}
	want := "any interface"
	if f.text != "" {
		want = fmt.Sprintf("interfaces %q", f.text)
	}
	if family != "" {
		want += " with family " + family
	}
	return fmt.Errorf("bootstrap: %w: no usable address for %s; this host has %s", ErrConfig, want, strings.Join(have, ", "))
}

// Routed asks the kernel which local address it would reach target from. No
// packet is sent: connecting a UDP socket only looks up the route.
func Routed(target string) netip.Addr {
	conn, err := net.Dial("udp", target)
	if err != nil {
		return netip.Addr{}
	}
	defer conn.Close()
	return Of(conn.LocalAddr())
}

// DefaultRouteFirst moves the addresses from which the rest of the world is
// reached to the front. The targets are addresses that documentation uses and
// nobody has.
func DefaultRouteFirst(nics []NIC) []NIC {
	first := []netip.Addr{Routed("192.0.2.1:9"), Routed("[2001:db8::1]:9")}
	out := slices.Clone(nics)
	slices.SortStableFunc(out, func(a, b NIC) int {
		place := func(n NIC) int {
			if slices.Contains(first, n.Addr) {
				return 0
			}
			return 1
		}
		return place(a) - place(b)
	})
	return out
}

// Of is the IP address of a TCP or UDP address, or the zero Addr.
func Of(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap()
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// LogChoice tells that an address has been chosen for what, and what decided.
func LogChoice(log *slog.Logger, what string, chosen NIC, f Filter, family string) {
	log.Info("address chosen", "for", what, "interface", chosen.Name, "addr", chosen.Addr.String(),
		"interfaces", f.text, "family", family)
}
