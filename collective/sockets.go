package collective

import (
	"crypto/tls"
	"fmt"
	"strconv"
	"time"

	"github.com/gollective/gollective/internal/affinity"
	"github.com/gollective/gollective/transport/tcp"
)

// What of a Config is about sockets.

// socketDefaults is withDefaults for those fields.
func (c *Config) socketDefaults(fill func(name string, field *int, def, least, most int), refuse func(name string, value any, accepted string)) {
	switch c.Proxy {
	case "", "auto", "thread", "inline":
	default:
		refuse("Proxy", strconv.Quote(c.Proxy), "auto, thread and inline")
	}
	mask, err := affinity.Parse(c.ProxyCPUs)
	if err != nil {
		refuse("ProxyCPUs", strconv.Quote(c.ProxyCPUs), `lists such as "0-3,8"`)
	}
	c.proxyCPUs = mask
	fill("SocketThreads", &c.SocketThreads, 0, 0, mostSocketThreads)
	fill("SocketsPerThread", &c.SocketsPerThread, 0, 0, mostSockets)
	if c.SocketThreads > 0 && c.SocketsPerThread == 0 {
		c.SocketsPerThread = 1
	}
	if c.SocketThreads == 0 && c.SocketsPerThread > 0 {
		c.SocketThreads = 1
	}
	if n := c.SocketThreads * c.SocketsPerThread; n > mostSockets && c.SocketThreads <= mostSocketThreads && c.SocketsPerThread <= mostSockets {
		refuse("SocketsPerThread", c.SocketsPerThread, fmt.Sprintf("up to %d with %d threads", mostSockets/c.SocketThreads, c.SocketThreads))
	}
	if c.SocketBuffer != 0 {
		fill("SocketBuffer", &c.SocketBuffer, 0, leastSocketBuffer, 1<<30)
	}
	fill("SocketRate", &c.SocketRate, 0, 0, 1<<40)
	switch {
	case c.PeerTimeout == 0:
		c.PeerTimeout = defaultPeerTimeout
	case c.PeerTimeout < time.Second:
		refuse("PeerTimeout", c.PeerTimeout, "1s and more")
	}
	switch c.TLS {
	case "", "off", "job":
		for name, value := range map[string]string{"TLSCert": c.TLSCert, "TLSKey": c.TLSKey, "TLSCA": c.TLSCA} {
			if value != "" {
				refuse(name, strconv.Quote(value), `"" where TLS is not files`)
			}
		}
	case "files":
		if c.TLSCert == "" || c.TLSKey == "" || c.TLSCA == "" {
			refuse("TLS", strconv.Quote(c.TLS), "files with all of TLSCert, TLSKey and TLSCA")
		}
	default:
		refuse("TLS", strconv.Quote(c.TLS), "off, job and files")
	}
}

// tls is how sockets are encrypted, nil for not at all.
func (c Config) tls(secret []byte) (*tls.Config, error) {
	switch c.TLS {
	case "job":
		return tcp.JobTLS(secret)
	case "files":
		config, err := tcp.FilesTLS(c.TLSCert, c.TLSKey, c.TLSCA)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		return config, nil
	}
	return nil, nil
}

// leastSocketBuffer holds a head and a little.
const leastSocketBuffer = 4096

// threaded says whether proxies are threads where ranks of this host share cores
// processors.
func (c Config) threaded(ranks, cores int) bool {
	switch c.Proxy {
	case "thread":
		return true
	case "inline":
		return false
	}
	// Under TLS goroutines do the work; a thread that polls would only be in their way.
	return cores >= 2*ranks && (c.TLS == "" || c.TLS == "off")
}

// port opens the port of a process that has the job's secret.
func (c Config) port(secret []byte, change func(*tcp.PortConfig)) (*tcp.Port, error) {
	encrypted, err := c.tls(secret)
	if err != nil {
		return nil, err
	}
	p := tcp.PortConfig{
		Secret: secret, Interfaces: c.SocketIfname, Family: c.SocketFamily, Ports: c.ports,
		PeerTimeout: c.PeerTimeout, JoinTimeout: c.JoinTimeout,
		Buffer: c.SocketBuffer, Rate: c.SocketRate, TLS: encrypted,
		SocketsPerThread: c.SocketsPerThread, Threads: c.SocketThreads,
		Faults: c.faults, Logger: c.quiet(),
	}
	change(&p)
	return tcp.Open(p)
}

// sockets returns the transport of a communicator over port; the caller fills in
// what it is between.
func (c Config) sockets(t tcp.Config, ranksHere, coresHere int) (*tcp.Transport, error) {
	t.Thread = c.threaded(ranksHere, coresHere)
	t.CPUs = c.proxyCPUs.List()
	// A proxy waits beside its block.
	t.Policy, t.Waiters, t.Cores = c.Wait, 2*ranksHere, coresHere
	t.Account, t.Labels = c.Accounting, c.Profile
	t.ConnectTimeout = c.JoinTimeout
	t.Logger = c.quiet()
	return tcp.New(t)
}
