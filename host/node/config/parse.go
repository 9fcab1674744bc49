package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/util/spelling"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// Parse parses a configuration in YAML or JSON. Relative paths in it are resolved against dir. The error joins up to 100 errors
// with their lines, in the order of lines.
func Parse(b []byte, dir string) (*Config, error) {
	docs := split(b)
	switch {
	case len(docs) == 0:
		return nil, fmt.Errorf("empty file: apiVersion: %s and kind: %s are required", APIVersion, Kind)
	case len(docs) > 1:
		return nil, fmt.Errorf("line %d: second document: the file must contain one document", docs[1].Line)
	}
	raw, twice, err := docs[0].ToJSON()
	if err = errors.Join(err, twice); err != nil {
		return nil, err
	}
	f, misfits := strictyaml.DecodeForm[file](raw, form())
	if f.Kind == KubeProxyKind {
		return nil, fmt.Errorf("kind: %s is kube-proxy's: convert the file with 'sluice config migrate'", f.Kind)
	}
	p := &parser{dir: dir, misfits: misfits, more: misfits.MoreDropped + misfits.MoreUnknown}
	for _, m := range misfits.Reported {
		if tag, ok := imageref.IsTag(m.Err); ok {
			m.Err = &UnpinnedError{tag, &f.PluginImages}
		}
		p.errs = append(p.errs, m)
	}
	var in struct {
		OOMScoreAdj json.RawMessage `json:"oomScoreAdj"`
	}
	_ = json.Unmarshal(raw, &in) // it is well-formed, and an object or an error
	f.OOMScoreAdjSet = len(in.OOMScoreAdj) > 0 && string(in.OOMScoreAdj) != "null"
	p.file(f)
	if err := p.err(&docs[0]); err != nil {
		return nil, err
	}
	return &f.Config, nil
}

// AddLines joins messages that begin with the path of a field of a configuration that is well-formed, with their lines. The error
// is nil if there are none.
func AddLines(b []byte, messages []string) error {
	docs := split(b)
	if len(messages) == 0 || len(docs) == 0 {
		return nil
	}
	lines := docs[0].Lines()
	var errs []error
	for _, m := range messages {
		path, _, _ := strings.Cut(m, ": ")
		errs = append(errs, strictyaml.FieldError{Err: errors.New(m), Line: lines(path)})
	}
	return errors.Join(errs...)
}

func split(b []byte) []strictyaml.Document {
	return strictyaml.SplitYAML(string(bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))))
}

type parser struct {
	dir               string
	misfits           *strictyaml.FieldErrors
	plugins, policies []string // the names that the file defines
	errs              []strictyaml.FieldError
	more              int // number of errors not in errs
}

// err returns the errors with their lines; nil: there are none.
func (p *parser) err(doc *strictyaml.Document) error {
	if over := len(p.errs) - maxReported; over > 0 {
		p.errs, p.more = p.errs[:maxReported], p.more+over
	}
	if len(p.errs) == 0 {
		return nil
	}
	lines, errs := doc.Lines(), []error{}
	for i := range p.errs {
		p.errs[i].Line = lines(p.errs[i].Path)
	}
	slices.SortStableFunc(p.errs, func(a, b strictyaml.FieldError) int { return a.Line - b.Line })
	for _, e := range p.errs {
		errs = append(errs, e)
	}
	if p.more > 0 {
		errs = append(errs, fmt.Errorf("and %d more errors in this file", p.more))
	}
	return errors.Join(errs...)
}

// errorf records an error of a field unless the field already has a decoding error.
func (p *parser) errorf(path, format string, args ...any) {
	switch {
	case p.misfits.Covers(path):
	case len(p.errs) >= maxReported:
		p.more++
	default:
		p.errs = append(p.errs, strictyaml.FieldError{Path: path, Err: fmt.Errorf(format, args...)})
	}
}

// known returns an error unless a name is among those that exist.
func (p *parser) known(what, name string, all []string) error {
	if !slices.Contains(all, name) {
		return fmt.Errorf("no %s %q%s", what, name, spelling.DidYouMean(name, all))
	}
	return nil
}

// file checks a file: each field, and then what depends on several.
func (p *parser) file(f *file) {
	if f.APIVersion != APIVersion {
		p.errorf("apiVersion", "%q: must be %s", f.APIVersion, APIVersion)
	}
	if f.Kind != Kind {
		p.errorf("kind", "%q: must be %s", f.Kind, Kind)
	}
	c := &f.Config
	p.presets(c)
	p.plugins, p.policies = names(c.Plugins, func(m Plugin) string { return m.Name }), names(c.Policies, func(q Policy) string { return q.Name })
	eachField(reflect.ValueOf(c).Elem(), "", false, p.check)
	if err := CheckMode(c.Mode); err != nil {
		p.errorf("mode", "%w", err)
	}
	for mode, i := range map[string][2]string{
		BridgeInterface:     {"bridgeInterface", c.DetectLocal.BridgeInterface},
		InterfaceNamePrefix: {"interfaceNamePrefix", c.DetectLocal.InterfaceNamePrefix},
	} {
		if c.DetectLocalMode == mode && i[1] == "" {
			p.errorf("detectLocal."+i[0], "required with detectLocalMode %s", mode)
		}
	}
	if c.MinSyncPeriod > c.SyncPeriod {
		p.errorf("minSyncPeriod", "%s is greater than syncPeriod, %s", c.MinSyncPeriod, c.SyncPeriod)
	}
	if at, err := netip.ParseAddrPort(c.StateBindAddress); err == nil && !at.Addr().Unmap().IsLoopback() {
		p.errorf("stateBindAddress", "%s is not a loopback address: kubectl sluice reaches it through the API server, and tokens would cross the network in plain text", at)
	}
	if m := uint32(c.IPVS.MarkMask); bits.OnesCount32(m) < minMarkBits {
		p.errorf("ipvs.markMask", "%#x has %d bits, and at least %d are needed", m, bits.OnesCount32(m), minMarkBits)
	} else if c.Mode == ModeIPVS && m&c.MasqueradeMark() != 0 {
		p.errorf("ipvs.markMask", "%#x contains bit %d, which is masqueradeBit", m, c.MasqueradeBit)
	}
	p.distinct("pluginImages.plainHTTP", "registries", maxPlainHTTP, c.PluginImages.PlainHTTP)
	p.pluginList(c.Plugins)
	p.policyList(c)
	p.bindings(c)
}

// minMarkBits allow for 254 pools.
const minMarkBits = 8

// names returns the names of the items of a list.
func names[T any](list []T, name func(T) string) (out []string) {
	for _, item := range list {
		out = append(out, name(item))
	}
	return out
}

// distinct reports items of a list that exist before, and a list with more than a maximum of them; 0: there is none.
func (p *parser) distinct(path, what string, most int, list []string) {
	if most > 0 && len(list) > most {
		p.errorf(path, "%d %s, the limit is %d", len(list), what, most)
		return
	}
	seen := map[string]bool{}
	for i, s := range list {
		if seen[s] && s != "" {
			p.errorf(fmt.Sprintf("%s[%d]", path, i), "%q: duplicate", s)
		}
		seen[s] = true
	}
}
