package policy

import (
	"crypto/sha256"
	"encoding/hex"
)

// revisionDigits is the length of a revision of a policy: 48 bits, so that 10,000 revisions are all different except with a
// probability of 1 in 5 million.
const revisionDigits = 12

// Revision returns the revision of a policy: hexadecimal digits of a digest of everything in the policy that can change an
// answer, and of the code of its plugins. Policies with other names have the same revision if they give the same answers;
// settings of Services have no effect on it. It is "" for nil, and while a plugin of the policy is not loaded: the revision is
// then not known. plugins returns the current revision of a plugin by name.
func Revision(p *Policy, plugins func(string) (Plugin, error)) string {
	codes := codesOf(p, plugins)
	if codes == nil {
		return ""
	}
	return new(digester).policy(p, codes)
}

// codesOf returns the revisions of a policy's plugins, nil if one of them is not loaded.
func codesOf(p *Policy, plugins func(string) (Plugin, error)) []string {
	if p == nil {
		return nil
	}
	codes := make([]string, len(p.Steps))
	for i := range p.Steps {
		plugin, err := plugins(p.Steps[i].Plugin)
		if err != nil {
			return nil
		}
		codes[i] = plugin.Revision()
	}
	return codes
}

// policy returns the revision of a policy, given those of its plugins. TestRevisionCoversPolicy checks that no field is missing.
func (d *digester) policy(p *Policy, codes []string) string {
	d.buf = d.buf[:0]
	d.addUint64(uint64(p.OnFailure))
	if p.IgnoreHints {
		d.addString("ignoreHints")
	}
	if p.LongLived {
		d.addString("longLived")
	}
	d.addUint64(uint64(p.Panic.Below))
	d.addUint64(uint64(p.Panic.Hold))
	d.addUint64(uint64(p.MaxShedPercentPerSecond))
	for i := range p.Steps {
		s := &p.Steps[i]
		d.addString(s.Plugin)
		d.addString(codes[i])
		if p.FromObject {
			d.addString(s.Settings)
		} else {
			d.addString(s.Configured())
		}
		d.addUint64(uint64(len(s.ServiceSettings)))
		for _, field := range s.ServiceSettings {
			d.addString(field)
		}
	}
	sum := sha256.Sum256(d.buf)
	return hex.EncodeToString(sum[:])[:revisionDigits]
}
