package abi

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// Kinds of keys that a plugin can declare: a prefix that the name of a label, annotation or load follows, or all of the key.
const (
	KeyPodLabel          = "label:"
	KeyPodAnnotation     = "annotation:"
	KeyPodCPU            = "request:cpu" // millicores that the Pod's containers request, as a decimal number
	KeyNodeLabel         = "node-label:" // of the endpoint's Node
	KeyServiceLabel      = "service-label:"
	KeyServiceAnnotation = "service-annotation:"
	KeyNamespaceLabel    = "namespace-label:" // of the Service's namespace
	KeyLoad              = "load:"            // that the endpoint reports: a field of an ORCA report
)

// Limits of sluice_keys.
const (
	MaxKeys    = 16
	MaxKeyName = 253 + 1 + 63 // bytes of the name of a label or annotation, as in Kubernetes
	MaxKeysLen = 5392         // bytes: MaxKeys of the longest kind, each with an end of line
)

// ParseKeys parses the text that sluice_keys writes: declared keys, one a line. The text may end with an end of line. An error
// names the key.
func ParseKeys(text string) ([]string, error) {
	text = strings.TrimSuffix(text, "\n")
	if text == "" {
		return nil, nil
	}
	if n := strings.Count(text, "\n") + 1; n > MaxKeys {
		return nil, errors.New(strconv.Itoa(n) + " keys, more than " + strconv.Itoa(MaxKeys))
	}
	keys := strings.Split(strings.Clone(text), "\n")
	for i, k := range keys {
		if err := checkKey(k); err != nil {
			return nil, errors.New("key " + strconv.Itoa(i) + ": " + err.Error())
		}
		if slices.Contains(keys[:i], k) {
			return nil, errors.New("key " + strconv.Itoa(i) + ": " + strconv.Quote(k) + " is declared twice")
		}
	}
	return keys, nil
}

// kinds are the kinds of keys that a name follows.
var kinds = [...]string{KeyPodLabel, KeyPodAnnotation, KeyNodeLabel, KeyServiceLabel, KeyServiceAnnotation, KeyNamespaceLabel, KeyLoad}

// IsEndpointKey reports whether the values of a declared key are in Endpoint.Values: those of Pods and Nodes, and load.
// Otherwise they are in Request.ServiceValues.
func IsEndpointKey(key string) bool {
	return IsPodKey(key) || strings.HasPrefix(key, KeyNodeLabel) || strings.HasPrefix(key, KeyLoad)
}

// IsPodKey reports whether a declared key is of Pods.
func IsPodKey(key string) bool {
	return key == KeyPodCPU || strings.HasPrefix(key, KeyPodLabel) || strings.HasPrefix(key, KeyPodAnnotation)
}

// KeyKind returns the kind of a declared key and the name of its label, annotation or load, "" for KeyPodCPU; ok is false if
// the kind is unknown.
func KeyKind(key string) (kind, name string, ok bool) {
	if key == KeyPodCPU {
		return key, "", true
	}
	for _, kind := range kinds {
		if name, ok := strings.CutPrefix(key, kind); ok {
			return kind, name, true
		}
	}
	return "", "", false
}

func checkKey(key string) error {
	const most = len(KeyServiceAnnotation) + MaxKeyName
	if len(key) > most {
		return errors.New(strconv.Quote(key[:40]) + "… is " + strconv.Itoa(len(key)) + " bytes, more than " + strconv.Itoa(most))
	}
	kind, name, ok := KeyKind(key)
	switch {
	case !ok:
		return errors.New(strconv.Quote(key) + " is of an unknown kind: want " + KeyPodCPU + " or one of " +
			strings.Join(kinds[:], ", ") + " with a name")
	case kind == KeyLoad && !IsLoadName(name):
		return errors.New(strconv.Quote(key) + ": " + strconv.Quote(name) + " is no load: want one of " + strings.Join(loads[:], ", ") +
			", or a name after " + strings.Join(loadMaps[:], " or "))
	case kind != KeyPodCPU && kind != KeyLoad && !isQualifiedName(name):
		return errors.New(strconv.Quote(key) + ": " + strconv.Quote(name) + " is not the name of a label or annotation")
	}
	return nil
}

// loads are the fields of an ORCA report (xds.data.orca.v3.OrcaLoadReport) that are numbers, loadMaps those that have a number by
// name.
var (
	loads    = [...]string{"application_utilization", "cpu_utilization", "eps", "mem_utilization", "rps_fractional"}
	loadMaps = [...]string{"utilization/", "named_metrics/"}
)

// IsLoadName reports whether s is what can follow KeyLoad: a field of an ORCA report, such as rps_fractional or
// utilization/queue. Names that servers give are as the last part of a label.
func IsLoadName(s string) bool {
	for _, m := range loadMaps {
		if name, ok := strings.CutPrefix(s, m); ok {
			return !strings.Contains(name, "/") && isQualifiedName(name)
		}
	}
	return slices.Contains(loads[:], s)
}

// isQualifiedName reports whether s is the name of a label or annotation: an optional DNS subdomain and a slash, and 1 to 63
// letters, digits, "-", "_" and ".", with a letter or digit at both ends.
func isQualifiedName(s string) bool {
	if prefix, name, ok := strings.Cut(s, "/"); ok {
		if !isSubdomain(prefix) {
			return false
		}
		s = name
	}
	if s == "" || len(s) > 63 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && (i == 0 || i == len(s)-1 || c != '-' && c != '_' && c != '.') {
			return false
		}
	}
	return true
}

// isSubdomain reports whether s is a DNS subdomain (RFC 1123) in lower case, of at most 253 bytes.
func isSubdomain(s string) bool {
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		for i := range len(label) {
			c := label[i]
			if edge := i == 0 || i == len(label)-1; c >= 'A' && c <= 'Z' || !isAlphanumeric(c) && (edge || c != '-') {
				return false
			}
		}
		if label == "" {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
