package policy

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// requestDigest is a digest of what a plugin's answer depends on, but for time and for what the plugin said before: equal
// prints need no new call.
type requestDigest [sha256.Size]byte

// digester makes prints in a buffer that it keeps.
type digester struct{ buf []byte }

func (p *digester) addString(s string) {
	p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(len(s)))
	p.buf = append(p.buf, s...)
}

func (p *digester) addUint64(n uint64) { p.buf = binary.LittleEndian.AppendUint64(p.buf, n) }

// request is the print of a request before the chain.
func (p *digester) request(r *abi.Request) requestDigest {
	p.buf = p.buf[:0]
	for _, s := range []string{r.Namespace, r.Service, r.Port, r.Node, r.Zone} {
		p.addString(s)
	}
	flags := uint64(0)
	if r.InternalPolicyLocal {
		flags |= 1
	}
	if r.ExternalPolicyLocal {
		flags |= 2
	}
	p.addUint64(uint64(r.PortNumber) | uint64(r.Protocol)<<16 | uint64(r.Family)<<24 | uint64(r.Pool)<<32 | flags<<40)
	p.addUint64(uint64(r.SessionAffinityMS))
	p.addUint64(uint64(len(r.Zones)))
	for i := range r.Zones {
		z := &r.Zones[i]
		p.addString(z.Name)
		p.addUint64(uint64(z.Nodes) | uint64(z.Ready)<<32)
		p.addUint64(z.MilliCPU)
	}
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		a := e.Addr.Addr().As16()
		p.buf = append(p.buf, a[:]...)
		p.addUint64(uint64(e.Addr.Port()) | uint64(e.Conditions)<<16)
		p.addUint64(uint64(e.ReadySince))
		p.addUint64(uint64(e.TerminatingSince))
		p.addUint64(uint64(e.Connections))
		p.addString(e.Node)
		p.addString(e.Zone)
		p.addString(e.Metadata)
	}
	return sha256.Sum256(p.buf)
}

// step is the print of one plugin's view: the input, the plugin, and the weights of the plugins before it.
func (p *digester) step(in requestDigest, revision string, eps []abi.Endpoint) requestDigest {
	p.buf = append(p.buf[:0], in[:]...)
	p.addString(revision)
	for i := range eps {
		p.buf = binary.LittleEndian.AppendUint32(p.buf, eps[i].Weight)
	}
	return sha256.Sum256(p.buf)
}
