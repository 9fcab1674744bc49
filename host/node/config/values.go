package config

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-proxy/sluice/host/core/model"
	"github.com/sluice-proxy/sluice/host/core/policy"
	"github.com/sluice-proxy/sluice/host/plugin/imageref"
	"github.com/sluice-proxy/sluice/host/util/strictyaml"
)

// maxReported is the maximum number of errors that are reported; others are counted.
const maxReported = 100

// form is how the file is decoded: durations, addresses and ranges are texts.
func form() strictyaml.Form {
	return strictyaml.Form{MaxReported: maxReported, Text: map[reflect.Type]func(string) (any, error){
		reflect.TypeFor[time.Duration](): func(s string) (any, error) {
			d, err := time.ParseDuration(s)
			if s != "" && err != nil {
				return nil, fmt.Errorf("%q is not a duration such as 30s or 1m30s", s)
			}
			return int64(d), nil
		},
		reflect.TypeFor[netip.Prefix](): func(s string) (any, error) { c, err := parsePrefix(s); return c.String(), err },
		reflect.TypeFor[netip.Addr]():   parseAddr,
	}}
}

func parsePrefix(s string) (netip.Prefix, error) {
	c, err := netip.ParsePrefix(s)
	if err != nil || c.Addr().Is4In6() {
		return netip.Prefix{}, fmt.Errorf("%q is not a CIDR such as 10.244.0.0/16 or fd00:10:244::/56", s)
	}
	return c.Masked(), nil
}

// parseAddr parses a unicast address. As in kube-proxy, the unspecified addresses mean the default.
func parseAddr(s string) (any, error) {
	if s == "" {
		return s, nil
	}
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil || a.Zone() != "":
		return nil, fmt.Errorf("%q is not an IP address", s)
	case a.IsMulticast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return nil, fmt.Errorf("%s is not a unicast address", a)
	case a.IsUnspecified():
		return "", nil
	}
	return a.Unmap().String(), nil
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ From, To uint16 }

// String returns the range as in the file.
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.From, r.To) }

// MarshalText implements encoding.TextMarshaler.
func (r PortRange) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// UnmarshalText parses a range such as 30000-32767.
func (r *PortRange) UnmarshalText(text []byte) error {
	from, to, ok := strings.Cut(string(text), "-")
	a, err := strconv.ParseUint(from, 10, 16)
	b, err2 := strconv.ParseUint(to, 10, 16)
	if !ok || err != nil || err2 != nil || a == 0 || a > b {
		return fmt.Errorf("%q is not a range of ports such as 30000-32767", text)
	}
	*r = PortRange{uint16(a), uint16(b)}
	return nil
}

// ClusterRanges are CIDRs, at most one of each family, separated by a comma.
type ClusterRanges []netip.Prefix

// MarshalText implements encoding.TextMarshaler.
func (r ClusterRanges) MarshalText() ([]byte, error) {
	var out []string
	for _, c := range r {
		out = append(out, c.String())
	}
	return []byte(strings.Join(out, ",")), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *ClusterRanges) UnmarshalText(text []byte) error {
	*r = nil
	if strings.TrimSpace(string(text)) == "" {
		return nil
	}
	var errs []error
	seen := map[model.Family]bool{}
	for part := range strings.SplitSeq(string(text), ",") {
		c, err := parsePrefix(strings.TrimSpace(part))
		switch f := model.FamilyOf(c.Addr()); {
		case err != nil:
			errs = append(errs, err)
		case seen[f]:
			errs = append(errs, fmt.Errorf("%s: more than one CIDR of %s", c, f))
		default:
			seen[f] = true
			*r = append(*r, c)
		}
	}
	return errors.Join(errs...)
}

// NodePorts select this node's addresses that serve NodePorts. A family without a prefix uses all its addresses, or the primary
// one with Primary; without any prefix that is meant anyway. Prefixes of loopback addresses make sluice listen there (KEP-6032).
type NodePorts struct {
	Prefixes []netip.Prefix
	Primary  bool // the primary addresses too; false if Prefixes is nil
}

// MarshalJSON implements json.Marshaler.
func (n NodePorts) MarshalJSON() ([]byte, error) {
	var out []string
	if n.Prefixes == nil || n.Primary {
		out = append(out, "primary")
	}
	for _, c := range n.Prefixes {
		out = append(out, c.String())
	}
	return json.Marshal(out)
}

// UnmarshalJSON parses CIDRs and the words primary, all and localhost, which stand for CIDRs. An empty list means primary.
func (n *NodePorts) UnmarshalJSON(b []byte) error {
	*n = NodePorts{}
	list, wrong := strictyaml.DecodeForm[[]string](b, form())
	errs := []error{}
	for _, e := range wrong.Reported {
		errs = append(errs, e)
	}
	for i, s := range *list {
		switch s {
		case "primary":
			n.Primary = true
		case "all":
			n.Prefixes = append(n.Prefixes, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		case "localhost":
			n.Prefixes = append(n.Prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{127}), 8), netip.PrefixFrom(netip.IPv6Loopback(), 128))
		default:
			c, err := parsePrefix(s)
			if at := fmt.Sprintf("[%d]", i); err != nil && !wrong.Covers(at) {
				errs = append(errs, strictyaml.FieldError{Path: at, Err: err})
			}
			n.Prefixes = append(n.Prefixes, c)
		}
	}
	n.Primary = n.Primary && n.Prefixes != nil
	return errors.Join(errs...)
}

// MarkMask is written as 0x1f7f, in YAML with or without quotes: without, YAML makes it a decimal number.
type MarkMask uint32

// MarshalJSON implements json.Marshaler.
func (m MarkMask) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `"%#x"`, uint32(m)), nil }

// UnmarshalJSON implements json.Unmarshaler.
func (m *MarkMask) UnmarshalJSON(b []byte) error {
	n, err := strconv.ParseUint(strings.Trim(string(b), `"`), 0, 32)
	if err != nil || n == 0 {
		return errors.New("not a mask of 32 bits such as 0x1f7f")
	}
	*m = MarkMask(n)
	return nil
}

// Settings is a JSON object in canonical form: sorted keys, no whitespace; "" for none.
type Settings string

// MarshalJSON implements json.Marshaler.
func (s Settings) MarshalJSON() ([]byte, error) {
	if s == "" {
		return []byte("null"), nil
	}
	return []byte(s), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Settings) UnmarshalJSON(b []byte) error {
	*s = ""
	tree, _, _ := strictyaml.ParseJSON(b)
	if tree == nil {
		return nil
	}
	if _, ok := tree.(map[string]any); !ok {
		return strictyaml.FieldError{Err: fmt.Errorf("%s is not an object", strictyaml.Describe(tree))}
	}
	text, err := json.Marshal(tree)
	*s = Settings(text)
	return err
}

// schedulerName matches a scheduler name: the name of its kernel module without ip_vs_.
var schedulerName = regexp.MustCompile(`^[a-z0-9_]{1,15}$`)

// checks are the values of the tag check. Each returns the text in its canonical form.
var checks = map[string]func(p *parser, s string) (string, error){
	"digest": func(_ *parser, s string) (string, error) {
		sum, ok := strings.CutPrefix(s, "sha256:")
		if _, err := hex.DecodeString(sum); !ok || err != nil || len(sum) != 64 || sum != strings.ToLower(sum) {
			return s, fmt.Errorf("%q is not sha256: followed by 64 lowercase hexadecimal digits", s)
		}
		return s, nil
	},
	"file": func(p *parser, s string) (string, error) {
		if filepath.IsAbs(s) {
			return filepath.Clean(s), nil
		}
		return filepath.Join(p.dir, s), nil
	},
	"interface": func(_ *parser, s string) (string, error) {
		if !isInterface(s) {
			return s, fmt.Errorf("%q is not an interface name: 1 to 15 printable ASCII characters except '/', '*', '#' and spaces", s)
		}
		return s, nil
	},
	"listen": func(_ *parser, s string) (string, error) {
		a, err := netip.ParseAddrPort(s)
		if err != nil {
			return s, fmt.Errorf("%q is not an IP address and port such as 127.0.0.1:10249 or [::]:10249", s)
		}
		return a.String(), nil
	},
	"name": func(_ *parser, s string) (string, error) { return s, checkName(s) },
	"plugin": func(p *parser, s string) (string, error) {
		if now := policy.FormerPlugin(s); now != "" && !slices.Contains(p.plugins, s) {
			return s, fmt.Errorf("no plugin %q%s", s, now)
		}
		return s, p.known("plugin", s, p.plugins)
	},
	"policy": func(p *parser, s string) (string, error) {
		if s == "" {
			return s, errRequired
		}
		return s, p.known("policy", s, slices.Concat(p.policies, names(Presets(), func(q Policy) string { return q.Name })))
	},
	"registry": func(_ *parser, s string) (string, error) {
		if !imageref.IsRegistry(s) {
			return s, fmt.Errorf("%.300q is not a registry, such as registry.lab:5000", s)
		}
		return s, nil
	},
	"scheduler": func(_ *parser, s string) (string, error) {
		if !schedulerName.MatchString(s) {
			return s, fmt.Errorf("%q is not a scheduler name such as wrr, wlc or mh", s)
		}
		return s, nil
	},
	"server":      func(_ *parser, s string) (string, error) { return s, CheckServer(s) },
	"trafficHint": func(_ *parser, s string) (string, error) { return s, checkTrafficHint(s) },
	"settingName": func(_ *parser, s string) (string, error) {
		if s == "" {
			return s, errRequired
		}
		if len(s) > maxFieldName {
			return s, fmt.Errorf("%d bytes, the limit is %d", len(s), maxFieldName)
		}
		return s, nil
	},
}

var errRequired = errors.New("required")

// CheckServer returns an error if s is neither empty nor the URL of an API server.
func CheckServer(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	if err == nil && u.User != nil { // not included in the error: it may be a password
		return errors.New("URL must not contain credentials; put them into a kubeconfig")
	}
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%q is not a URL such as https://192.0.2.1:6443", s)
	}
	return nil
}

// isInterface reports whether s is a valid interface name for Linux and contains no pattern characters.
func isInterface(s string) bool {
	return s != "" && len(s) <= 15 && s != "." && s != ".." &&
		!slices.ContainsFunc([]byte(s), func(b byte) bool { return b <= ' ' || b >= 0x7f || strings.IndexByte("/*#", b) >= 0 })
}

// checkName requires the syntax of Kubernetes object names, because names appear in annotations, logs and metrics.
func checkName(s string) error {
	switch {
	case s == "":
		return errRequired
	case len(s) > 253 || !hasLabelSyntax(s, "-.", false):
		return fmt.Errorf("%.300q is not a name of lowercase letters, digits, '-' and '.'", s)
	}
	return nil
}

func checkLabelKey(s string) error {
	prefix, name, has := strings.Cut(s, "/")
	if !has {
		prefix, name = "x", s
	}
	if len(prefix) > 253 || !hasLabelSyntax(prefix, "-.", false) || name == "" || len(name) > 63 || !hasLabelSyntax(name, "-._", true) {
		return fmt.Errorf("%.300q is not a label key", s)
	}
	return nil
}

func checkLabelValue(s string) error {
	if len(s) > 63 || s != "" && !hasLabelSyntax(s, "-._", true) {
		return fmt.Errorf("%.300q is not a label value", s)
	}
	return nil
}

// hasLabelSyntax reports whether s consists of letters and digits, with marks between them.
func hasLabelSyntax(s, marks string, upper bool) bool {
	for i, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9', upper && r >= 'A' && r <= 'Z':
		case strings.ContainsRune(marks, r) && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return s != ""
}
