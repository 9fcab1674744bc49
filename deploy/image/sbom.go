package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// document is a document of SPDX 2.3, in JSON: what a binary is made from.
type document struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []component    `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

// component is a package of SPDX: sluice, Go's standard library, or a module.
type component struct {
	ID        string      `json:"SPDXID"`
	Name      string      `json:"name"`
	Version   string      `json:"versionInfo"`
	Download  string      `json:"downloadLocation"`
	Analyzed  bool        `json:"filesAnalyzed"`
	Concluded string      `json:"licenseConcluded"`
	Declared  string      `json:"licenseDeclared"`
	Copyright string      `json:"copyrightText"`
	Refs      []reference `json:"externalRefs"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

const none = "NOASSERTION"

// idForm matches what an identifier of SPDX may not have.
var idForm = regexp.MustCompile(`[^A-Za-z0-9.-]+`)

func newComponent(name, version, license string) component {
	return component{
		ID: "SPDXRef-Package-" + idForm.ReplaceAllString(name, "-"), Name: name, Version: version, Download: none, Concluded: none, Declared: license, Copyright: none,
		Refs: []reference{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + name + "@" + version}},
	}
}

// sbom returns the document about a binary, given the licenses of its modules by path; that of Go is "go".
func sbom(info *buildinfo.BuildInfo, version string, p platform, at time.Time, licenses map[string]string) ([]byte, error) {
	if at.IsZero() {
		at = time.Unix(0, 0)
	}
	name := fmt.Sprintf("sluice-%s-%s-%s", version, p.os, p.arch)
	all := []component{newComponent(module, version, licenses[module]), newComponent("std", strings.TrimPrefix(info.GoVersion, "go"), licenses["go"])}
	for _, m := range info.Deps {
		if m.Replace != nil && m.Replace.Version != "" {
			m = m.Replace
		}
		if m.Version != "" && m.Version != "(devel)" {
			all = append(all, newComponent(m.Path, m.Version, licenses[m.Path]))
		}
	}
	d := document{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: name, Packages: all,
		Creation:      creation{at.UTC().Format(time.RFC3339), []string{"Tool: sluice-deploy-image"}},
		Relationships: []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", all[0].ID}},
	}
	sum := sha256.New()
	for _, c := range all {
		fmt.Fprintln(sum, c.Refs[0].Locator)
	}
	for _, c := range all[1:] {
		d.Relationships = append(d.Relationships, relationship{all[0].ID, "DEPENDS_ON", c.ID})
	}
	d.Namespace = "https://" + module + "/spdx/" + name + "-" + hex.EncodeToString(sum.Sum(nil))
	text, err := json.MarshalIndent(d, "", " ")
	return append(text, '\n'), err
}

// licenseTexts are what licenses say of themselves, the special ones first. Whatever is not here is not in the image.
var licenseTexts = []struct {
	id    string
	words []string
}{
	{"Apache-2.0", []string{"Apache License", "Version 2.0"}},
	{"MPL-2.0", []string{"Mozilla Public License", "2.0"}},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "endorse or promote products"}},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms"}},
	{"MIT", []string{"Permission is hereby granted, free of charge"}},
	{"ISC", []string{"Permission to use, copy, modify, and", "distribute this software for any"}},
	{"CC0-1.0", []string{"CC0 1.0 Universal"}},
}

// licenseIn returns the licenses of a module in its license files as an expression of SPDX, or "" if a text is not known.
func licenseIn(texts ...string) string {
	var ids []string
	for _, text := range texts {
		text, found := strings.Join(strings.Fields(text), " "), false
		for _, l := range licenseTexts {
			if !slices.ContainsFunc(l.words, func(w string) bool { return !strings.Contains(text, w) }) {
				ids, found = append(ids, l.id), true
				break
			}
		}
		if !found {
			return ""
		}
	}
	slices.Sort(ids)
	return strings.Join(slices.Compact(ids), " AND ")
}
