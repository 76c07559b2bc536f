package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Kind says which fields of a Rendezvous matter.
type Kind int

const (
	// Alone: one rank, nobody to meet.
	Alone Kind = iota
	// ID: every rank was given the text of the same unique id.
	ID
	// Address: rank 0 listens on a port all ranks know.
	Address
	// Store: the launcher has a key-value store; rank 0 publishes an id there.
	Store
)

// DefaultPort is where rank 0 listens when only its host is known.
const DefaultPort = 29477

// Rendezvous is how the ranks of a world find each other.
type Rendezvous struct {
	Kind Kind
	// From is the variable, or the means, that gave it: for the log.
	From string
	// ID is the text of the id when Kind is ID. It holds a secret.
	ID string
	// Addresses are host:port when Kind is Address, with a name or an IP address
	// as host and the same port in all. They name one host, the best first; the
	// ranks other than 0 try them in turn.
	Addresses []string
	// SameHost: all ranks run on this host, so any local means will do.
	SameHost bool
	// Appears: the name may not exist yet and is worth waiting for.
	Appears bool
	// Key is the shared secret when Kind is Address.
	Key Key

	open    func(context.Context) (KVS, error)
	release func()
}

// String is for the log: where, and what the key is worth; no secrets.
func (r Rendezvous) String() string {
	switch r.Kind {
	case ID:
		return "unique id (" + r.From + ")"
	case Address:
		return fmt.Sprintf("%s (%s), key: %s", strings.Join(r.Addresses, " or "), r.From, r.Key)
	case Store:
		return "key-value store (" + r.From + ")"
	}
	return "none needed"
}

// GoString keeps secrets out of %#v.
func (r Rendezvous) GoString() string { return "launch.Rendezvous{" + r.String() + "}" }

// Open opens the key-value store of a Store. A launcher allows it once per
// process. The caller closes it; a process that leaves it open at its end is
// taken for a crashed one.
func (r Rendezvous) Open(ctx context.Context) (KVS, error) {
	if r.Kind != Store {
		return nil, fmt.Errorf("%w: the meeting place is not a key-value store", ErrLauncher)
	}
	return r.open(ctx)
}

// Release closes what Find has opened, for a caller that will not Open.
func (r Rendezvous) Release() {
	if r.release != nil {
		r.release()
	}
}

// meetingPlace: by hand first, then the convention's own, then MASTER_ADDR.
func meetingPlace(explicit Explicit, env *environment, c *claim) (Rendezvous, error) {
	key := c.key
	if own := env.get(envJobKey); own != "" {
		key = key.with(envJobKey, KeyGiven, own)
	}
	given, err := givenPlace(explicit, env, key)
	if err != nil || given.Kind != Alone {
		given.SameHost = given.Kind != Alone && c.localSize == c.size
		return given, err
	}
	if c.size == 1 {
		return Rendezvous{}, nil
	}
	var own error
	if c.meet != nil {
		r, err := c.meet()
		if err == nil {
			r.Key = key
			return r, nil
		}
		if !errors.Is(err, ErrNoRendezvous) {
			return Rendezvous{}, err
		}
		own = err
	}
	if r, err := masterPlace(env); err == nil {
		r.Key, r.SameHost = key, c.localSize == c.size
		return r, nil
	} else if !errors.Is(err, ErrNoRendezvous) {
		return Rendezvous{}, err
	}
	if own != nil {
		return Rendezvous{}, own
	}
	return Rendezvous{}, fmt.Errorf("%w: %s gives rank %d of %d: %s", ErrNoRendezvous, c.source, c.rank, c.size, c.needs)
}

// idMark begins the text of every unique id.
const idMark = "gollective1."

// givenPlace is Alone when neither the config nor a variable of ours gives one.
func givenPlace(explicit Explicit, env *environment, key Key) (Rendezvous, error) {
	id, root, idName, rootName := explicit.ID, explicit.Root, "config: ID", "config: Root"
	if id == "" && root == "" {
		id, root, idName, rootName = env.get(envCommID), env.get(envRoot), envCommID, envRoot
	}
	if id != "" && root != "" {
		return Rendezvous{}, fmt.Errorf("%w: %s and %s are both set: one meeting place only", ErrConflict, idName, rootName)
	}
	if id != "" {
		// The text of an id ends with addresses: with one of them it would pass
		// for host:port.
		if strings.HasPrefix(id, idMark) || checkAddress(idName, id) != nil {
			return Rendezvous{Kind: ID, From: idName, ID: id}, nil
		}
		root, rootName = id, idName
	}
	if root == "" {
		return Rendezvous{}, nil
	}
	if err := checkAddress(rootName, root); err != nil {
		return Rendezvous{}, err
	}
	return Rendezvous{Kind: Address, From: rootName, Addresses: []string{root}, Key: key}, nil
}

func checkAddress(name, address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || strings.ContainsAny(host, " \t\r\n/@") {
		return valuef("%s=%s is not host:port", name, shown(address))
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return valuef("%s=%s: the port is not a number from 1 to 65535", name, shown(address))
	}
	return nil
}

// Resolve turns the addresses of an Address into IP addresses, in their order.
// A name server that fails for the moment is asked again until ctx ends (or two
// minutes have passed), and with Appears one that doesn't know the name too.
func (r Rendezvous) Resolve(ctx context.Context) ([]netip.AddrPort, error) {
	return r.resolve(ctx, net.DefaultResolver.LookupNetIP)
}

type lookupFunc func(ctx context.Context, network, host string) ([]netip.Addr, error)

func (r Rendezvous) resolve(ctx context.Context, lookup lookupFunc) (found []netip.AddrPort, err error) {
	if r.Kind != Address {
		return nil, fmt.Errorf("%w: the meeting place is not an address", ErrNoRendezvous)
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	var failed error
	for _, address := range r.Addresses {
		host, portText, err := net.SplitHostPort(address)
		if err != nil {
			return nil, valuef("%s is not host:port", shown(address))
		}
		port, err := strconv.ParseUint(portText, 10, 16)
		if err != nil {
			return nil, valuef("%s: bad port", shown(address))
		}
		ips, err := lookupUntil(ctx, host, r.Appears, lookup)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("launch: address of rank 0, %s (%s): %w", address, r.From, err))
		}
		for _, ip := range ips {
			found = append(found, netip.AddrPortFrom(ip.Unmap(), uint16(port)))
		}
	}
	if len(found) > 0 {
		return found, nil
	}
	return nil, failed
}

const (
	resolveTimeout = 2 * time.Minute
	firstRetry     = 50 * time.Millisecond
	lastRetry      = 2 * time.Second
)

func lookupUntil(ctx context.Context, host string, appears bool, lookup lookupFunc) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	begin := time.Now()
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		ips, err := lookup(ctx, "ip", host)
		if err == nil && len(ips) > 0 {
			return ips, nil
		}
		if err == nil {
			err = &net.DNSError{Err: "no addresses", Name: host, IsNotFound: true}
		}
		var dns *net.DNSError
		if !errors.As(err, &dns) || (!dns.IsTemporary && !dns.IsTimeout && !(appears && dns.IsNotFound)) {
			return nil, err
		}
		retry := time.NewTimer(pause)
		select {
		case <-retry.C:
		case <-ctx.Done():
			retry.Stop()
			return nil, fmt.Errorf("asked for %v, %w; last answer: %w", time.Since(begin).Round(time.Millisecond), ctx.Err(), err)
		}
	}
}
