package policy

import (
	"crypto/sha256"
	"encoding/binary"
	"math"

	"github.com/sluice-proxy/sluice/sdk/abi"
)

// requestDigest is a digest of a plugin's input, without the time, the plugin's earlier answers, and connections with their
// outcomes, which change all the time: as long as it stays the same,
// the plugin need not be called again. TestDigestCoversRequest checks that no field is missing.
type requestDigest [sha256.Size]byte

// digester computes digests; it reuses its buffer.
type digester struct{ buf []byte }

func (d *digester) addString(s string) {
	d.buf = binary.LittleEndian.AppendUint32(d.buf, uint32(len(s)))
	d.buf = append(d.buf, s...)
}

// addValues adds values, whose number the caller has added.
func (d *digester) addValues(values []abi.Value) {
	for i := range values {
		if v := &values[i]; v.Present {
			d.addString(v.Text)
		} else {
			d.buf = binary.LittleEndian.AppendUint32(d.buf, math.MaxUint32)
		}
	}
}

func (d *digester) addUint64(n uint64) { d.buf = binary.LittleEndian.AppendUint64(d.buf, n) }

// request returns the digest of the request for the first plugin of the chain.
func (d *digester) request(r *abi.Request) requestDigest {
	d.buf = d.buf[:0]
	for _, s := range []string{r.Namespace, r.Service, r.Port, r.Node, r.Zone} {
		d.addString(s)
	}
	flags := uint64(0)
	if r.InternalPolicyLocal {
		flags |= 1
	}
	if r.ExternalPolicyLocal {
		flags |= 2
	}
	d.addUint64(uint64(r.PortNumber) | uint64(r.Protocol)<<16 | uint64(r.Family)<<24 | uint64(r.Pool)<<32 | flags<<40)
	d.addUint64(uint64(r.SessionAffinityMS))
	d.addUint64(uint64(r.NodeIndex) | uint64(r.NodeCount)<<32)
	d.addUint64(uint64(len(r.Keys)) | uint64(len(r.ServiceValues))<<32)
	for _, k := range r.Keys {
		d.addString(k)
	}
	d.addValues(r.ServiceValues)
	d.addUint64(uint64(len(r.Zones)))
	for i := range r.Zones {
		z := &r.Zones[i]
		d.addString(z.Name)
		d.addUint64(uint64(z.Nodes) | uint64(z.Ready)<<32)
		d.addUint64(uint64(z.Serving) | uint64(z.Total)<<32)
		d.addUint64(z.MilliCPU)
	}
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		a := e.Addr.Addr().As16()
		d.buf = append(d.buf, a[:]...)
		d.addUint64(uint64(e.Addr.Port()) | uint64(e.Conditions)<<16 | uint64(len(e.Values))<<48)
		d.addUint64(uint64(e.ReadySince))
		d.addUint64(uint64(e.TerminatingSince))
		d.addString(e.Node)
		d.addString(e.Zone)
		d.addString(e.Pod)
		d.addValues(e.Values)
	}
	return sha256.Sum256(d.buf)
}

// step returns the digest for one plugin: the request, the plugin's revision and settings, and what the plugins before have
// written.
func (d *digester) step(in requestDigest, revision, settings string, r *abi.Request) requestDigest {
	d.buf = append(d.buf[:0], in[:]...)
	d.addString(revision)
	d.addString(settings)
	for _, part := range r.Groups {
		d.buf = binary.LittleEndian.AppendUint32(d.buf, part)
	}
	for i := range r.Endpoints {
		e := &r.Endpoints[i]
		d.addUint64(uint64(e.Capacity) | uint64(e.Share)<<32)
		d.buf = binary.LittleEndian.AppendUint16(d.buf, e.Group)
	}
	return sha256.Sum256(d.buf)
}
