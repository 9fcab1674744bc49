package dir

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

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
	if !jsontext.Value(raw).IsValid() { // it has duplicate keys or invalid UTF-8
		tree, twice, more := strictyaml.ParseJSON(raw)
		for _, path := range twice {
			d.addProblem("", path, errors.New("duplicate key: the last one is used"))
		}
		d.problems.errors += more
		var err error
		if raw, err = json.Marshal(tree); err != nil { // cannot happen: it comes from JSON
			d.addProblem("", "", err)
			return
		}
	}
	ignored := map[string]*ignoredKind{}
	d.decodeItem(raw, "", "", 0, ignored)
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
func (d *document) decodeItem(raw jsontext.Value, where, implied string, depth int, ignored map[string]*ignoredKind) {
	switch raw.Kind() {
	case 'n':
		return
	case '{':
	default:
		d.incomplete = true
		d.addProblem("", where, fmt.Errorf("%s is not an object", describe(raw)))
		return
	}
	m := fieldsOf(raw)
	version, kind := stringField(m, "apiVersion"), stringField(m, "kind")
	if version == "" && kind == "" && implied != "" {
		version, kind, _ = strings.Cut(implied, " ")
	}
	id, itemKind := version+" "+kind, strings.TrimSuffix(version+" "+kind, "List")
	meta := fieldsOf(m["metadata"])
	name := model.Name{Namespace: stringField(meta, "namespace"), Name: stringField(meta, "name")}
	isList := id == "v1 List" || id != itemKind && slices.Contains(kinds, itemKind)
	d.incomplete = d.incomplete || kind == "" || name.Name == "" && !isList
	switch {
	case kind == "":
		d.addProblem("", strictyaml.JoinPath(where, "kind"), errors.New("missing or not a string: the object is not used"))
	case isList:
		d.decodeList(m["items"], where, itemKind, depth, ignored)
	case slices.Contains(kinds, id):
		d.decodeObject(raw, id, kind, name)
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

func (d *document) decodeList(raw jsontext.Value, where, implied string, depth int, ignored map[string]*ignoredKind) {
	if implied == "v1 " {
		implied = ""
	}
	where = strictyaml.JoinPath(where, "items")
	var items []jsontext.Value
	switch {
	case raw == nil || raw.Kind() == 'n':
	case jsonv2.Unmarshal(raw, &items) != nil:
		d.addProblem("", where, fmt.Errorf("%s is not a list", describe(raw)))
	case depth == maxLists:
		d.addProblem("", where, fmt.Errorf("lists are nested more than %d levels deep", maxLists))
		return
	}
	for i, it := range items {
		d.decodeItem(it, where+"["+strconv.Itoa(i)+"]", implied, depth+1, ignored)
	}
}

// fieldsOf returns the fields of an object, nil for any other value.
func fieldsOf(raw jsontext.Value) (m map[string]jsontext.Value) {
	if raw == nil || jsonv2.Unmarshal(raw, &m) != nil {
		return nil
	}
	return m
}

func stringField(m map[string]jsontext.Value, key string) (s string) {
	if raw := m[key]; raw == nil || raw.Kind() != '"' || jsonv2.Unmarshal(raw, &s) != nil {
		return ""
	}
	return s
}

func describe(raw jsontext.Value) string {
	tree, _, _ := strictyaml.ParseJSON(raw)
	return strictyaml.Describe(tree)
}
