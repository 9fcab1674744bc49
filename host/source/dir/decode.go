package dir

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-proxy/sluice/host/model"
	"github.com/sluice-proxy/sluice/host/source"
	"github.com/sluice-proxy/sluice/host/strictyaml"
)

// maxLists limits the nesting of lists.
const maxLists = 16

// The supported kinds, as apiVersion and kind.
const (
	kindService   = "v1 Service"
	kindSlice     = "discovery.k8s.io/v1 EndpointSlice"
	kindNode      = "v1 Node"
	kindEndpoints = "v1 Endpoints"
	kindCIDR      = "networking.k8s.io/v1 ServiceCIDR"
	kindPod       = "v1 Pod"
)

var kinds = []string{kindService, kindSlice, kindNode, kindEndpoints, kindCIDR, kindPod}

// decode decodes the objects of a document from well-formed JSON.
func (d *document) decode(raw []byte) {
	tree, twice, more := strictyaml.ParseJSON(raw)
	for _, path := range twice {
		d.addProblem("", path, errors.New("duplicate key: the last one is used"))
	}
	d.problems.errors += more
	ignored := map[string]*ignoredKind{}
	d.decodeItem(tree, "", "", 0, ignored)
	for _, id := range slices.Sorted(maps.Keys(ignored)) {
		err := fmt.Errorf("%s is not supported: ignored", strings.TrimSpace(id))
		if n := ignored[id].count; n > 1 {
			err = fmt.Errorf("%w, and %d more", err, n-1)
		}
		d.problems.add(source.Problem{Object: ignored[id].first, Err: err, Warning: true})
	}
}

// ignoredKind counts the objects of an unsupported kind.
type ignoredKind struct {
	first string
	count int
}

func (d *document) addProblem(object, field string, err error) {
	d.problems.add(source.Problem{Object: object, Field: field, Err: err})
}

// decodeItem decodes one object, or the items of a list. Items of a typed list may omit the kind that it implies.
func (d *document) decodeItem(tree any, where, implied string, depth int, ignored map[string]*ignoredKind) {
	if tree == nil {
		return
	}
	m, ok := tree.(map[string]any)
	if !ok {
		d.incomplete = true
		d.addProblem("", where, fmt.Errorf("%s is not an object", strictyaml.Describe(tree)))
		return
	}
	version, kind := stringField(m, "apiVersion"), stringField(m, "kind")
	if version == "" && kind == "" && implied != "" {
		version, kind, _ = strings.Cut(implied, " ")
		m["apiVersion"], m["kind"] = version, kind
	}
	id, itemKind := version+" "+kind, strings.TrimSuffix(version+" "+kind, "List")
	meta, _ := m["metadata"].(map[string]any)
	name := model.Name{Namespace: stringField(meta, "namespace"), Name: stringField(meta, "name")}
	isList := id == "v1 List" || id != itemKind && slices.Contains(kinds, itemKind)
	d.incomplete = d.incomplete || kind == "" || name.Name == "" && !isList
	switch {
	case kind == "":
		d.addProblem("", strictyaml.JoinPath(where, "kind"), errors.New("missing or not a string: the object is not used"))
	case isList:
		d.decodeList(m, where, itemKind, depth, ignored)
	case slices.Contains(kinds, id):
		d.decodeObject(m, id, kind, name)
	case slices.ContainsFunc(kinds, func(k string) bool { return strings.HasSuffix(k, " "+kind) }):
		d.addProblem(objectTitle(kind, name), "apiVersion", fmt.Errorf("%q is not supported, only %q", version, versionOf(kind)))
	default:
		if ignored[id] == nil {
			ignored[id] = &ignoredKind{first: objectTitle(kind, name)}
		}
		ignored[id].count++
	}
}

func versionOf(kind string) string {
	for _, id := range kinds {
		if v, k, _ := strings.Cut(id, " "); k == kind {
			return v
		}
	}
	return ""
}

func (d *document) decodeList(m map[string]any, where, implied string, depth int, ignored map[string]*ignoredKind) {
	if implied == "v1 " {
		implied = ""
	}
	items, ok := m["items"].([]any)
	switch {
	case m["items"] == nil:
	case !ok:
		d.addProblem("", strictyaml.JoinPath(where, "items"), fmt.Errorf("%s is not a list", strictyaml.Describe(m["items"])))
	case depth == maxLists:
		d.addProblem("", strictyaml.JoinPath(where, "items"), fmt.Errorf("lists are nested more than %d levels deep", maxLists))
	}
	if depth == maxLists {
		return
	}
	for i, it := range items {
		d.decodeItem(it, fmt.Sprintf("%s[%d]", strictyaml.JoinPath(where, "items"), i), implied, depth+1, ignored)
	}
}

func stringField(m map[string]any, key string) string {
	s, _ := m[key].(string)
	return s
}
