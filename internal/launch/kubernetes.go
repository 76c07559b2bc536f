package launch

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// kubernetes reads what an Indexed Job sets for each pod, one rank per pod. The
// number of pods is in the manifest only, which has to repeat it as
// GOLLECTIVE_SIZE or COMPLETIONS.
func kubernetes(e *environment) (*claim, error) {
	const index = "JOB_COMPLETION_INDEX"
	if e.get(index) == "" {
		return nil, nil
	}
	sizeVar := envSize
	if e.get(envSize) == "" {
		sizeVar = "COMPLETIONS"
	}
	c, ok, err := e.identity("Kubernetes", index, sizeVar, "", "")
	if err != nil || !ok {
		return nil, err
	}
	c.localRank, c.localSize = 0, 1
	if !c.complete() {
		c.missing = fmt.Sprintf("%s is set, but neither %s nor COMPLETIONS gives the number of pods (for pods that work alone, set %s=0 and %s=1)",
			index, envSize, envRank, envSize)
	}
	c.meet = func() (Rendezvous, error) { return firstPod(e, c) }
	return c, nil
}

// firstPod names pod 0: this pod's name with 0 for its own index, in the same
// subdomain.
func firstPod(e *environment, c *claim) (Rendezvous, error) {
	host := e.get("HOSTNAME")
	if host == "" {
		var err error
		if host, err = e.hostname(); err != nil {
			return Rendezvous{}, fmt.Errorf("%w: the name of this pod is unknown: %w; set %s", ErrNoRendezvous, err, envRoot)
		}
	}
	pod, domain, _ := strings.Cut(host, ".")
	job, ok := strings.CutSuffix(pod, "-"+strconv.Itoa(c.rank))
	if !ok || job == "" {
		return Rendezvous{}, fmt.Errorf("%w: the pod is named %s and not JOB-%d, as an Indexed Job names it; set %s",
			ErrNoRendezvous, shown(host), c.rank, envRoot)
	}
	from := "pod 0 of the job in " + envSubdomain
	if own := e.get(envSubdomain); own != "" {
		domain = own
	} else if domain == "" {
		// The kubelet writes a pod's full name there when it has a subdomain.
		text, _ := e.hosts()
		domain = domainOf(text, pod)
		from = "pod 0 of the job in the domain of this pod"
	}
	if domain == "" {
		return Rendezvous{}, fmt.Errorf("%w: pod %s has no subdomain, so pod 0 has no name; give the Job a headless Service as its subdomain and set %s, or set %s",
			ErrNoRendezvous, pod, envSubdomain, envRoot)
	}
	address := net.JoinHostPort(job+"-0."+domain, strconv.Itoa(DefaultPort))
	if err := checkAddress(envSubdomain, address); err != nil {
		return Rendezvous{}, err
	}
	return Rendezvous{Kind: Address, From: from, Addresses: []string{address}, Appears: true}, nil
}

// domainOf finds a full name of host in the text of a hosts file.
func domainOf(hosts []byte, host string) string {
	for lines := bufio.NewScanner(bytes.NewReader(hosts)); lines.Scan(); {
		line, _, _ := strings.Cut(lines.Text(), "#")
		names := strings.Fields(line)
		for i := 1; i < len(names); i++ {
			if domain, ok := strings.CutPrefix(names[i], host+"."); ok && domain != "" {
				return domain
			}
		}
	}
	return ""
}
