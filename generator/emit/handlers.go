package emit

import (
	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// HandlerInterfaces is the source of handlers.gen.go: for each destination the
// interface of its handler and the route that joins the two, and the function
// that takes one route of each.
func HandlerInterfaces(m *model.Model) ([]byte, error) {
	f := newFile(m.Package)
	for _, d := range m.Destinations {
		handlerInterface(f, d)
		handlerRoute(f, d)
	}
	allHandlers(f, m.Destinations)
	return source(f)
}

// handlerInterface declares what the user implements.
func handlerInterface(f *jen.File, d *model.Destination) {
	context := jen.Id("ctx").Qual(pathContext, "Context")
	var members []jen.Code
	for _, p := range d.Accepts {
		params := []jen.Code{context, jen.Id("d").Id("Delivery"), jen.Id("p").Id(p.GoName)}
		members = append(members,
			jen.Comment(docLines(p.GoName+" delivers a message of the type "+p.Name+".")),
			jen.Id(p.GoName).Params(params...).Id("Outcome"))
		if d.Asked() {
			name := model.ReconcileMethod(p.GoName)
			members = append(members,
				jen.Comment(docLines(name+" asks "+d.Name+" whether such a message has arrived.")),
				jen.Id(name).Params(params...).Id("Answer"))
		}
	}
	declare(f, []string{
		handlerOf(d) + " delivers the messages for " + d.Name + ".",
		"A call has " + d.Timeout.String() + " before its context ends. When its outcome is [Unknown], " + afterUnknown(d),
		retiredNote(d),
	}, jen.Type().Id(handlerOf(d)).Interface(members...))
}

// afterUnknown says what a handler has to reckon with.
func afterUnknown(d *model.Destination) string {
	switch {
	case d.Idempotent:
		return "the same\nbytes are delivered again under the same key."
	case d.Asked():
		return "the message\nis not delivered again unless a Reconcile method answers [NeverArrived], or a\nperson so decides."
	default:
		return "the message\nis not delivered again unless a person so decides."
	}
}

// handlerRoute declares the type that ties the handler to its destination: two
// destinations whose handlers have the same methods cannot be taken for each
// other.
func handlerRoute(f *jen.File, d *model.Destination) {
	declare(f, []string{routeOf(d) + " is " + d.Name + " with its handler. [" + handleOf(d) + "] makes it."},
		jen.Type().Id(routeOf(d)).Struct(jen.Id("handler").Id(handlerOf(d))))
	declare(f, []string{handleOf(d) + " delivers the messages for " + d.Name + " by h, which must not be nil."},
		jen.Func().Id(handleOf(d)).Params(jen.Id("h").Id(handlerOf(d))).Id(routeOf(d)).
			Add(inline(jen.Return(jen.Id(routeOf(d)).Values(jen.Id("handler").Op(":").Id("h"))))))

	handler := jen.Id("r").Dot("handler")
	destination := jen.Id("destination").Op(":").Id(constantOf(d))
	var calls []jen.Code
	for _, p := range d.Accepts {
		methods := []jen.Code{jen.Id("deliver").Op(":").Id("on").Call(handler.Clone().Dot(p.GoName))}
		if d.Asked() {
			methods = append(methods, jen.Id("ask").Op(":").Id("ask").Call(handler.Clone().Dot(model.ReconcileMethod(p.GoName))))
		}
		// An element on several lines is not aligned with its neighbours, so that
		// one more payload changes no other line.
		calls = append(calls, jen.Lit(p.Name).Op(":").Add(lines(methods)))
	}
	declare(f, nil, jen.Func().Params(jen.Id("r").Id(routeOf(d))).Id("route").Params().Id("route").Block(
		jen.If(handler.Clone().Op("==").Nil()).Block(
			jen.Return(jen.Id("route").Values(destination, jen.Id("missing").Op(":").True())),
		),
		jen.Return(jen.Id("route").Values(
			destination,
			jen.Id("calls").Op(":").Map(jen.String()).Id("call").Add(lines(calls)),
		)),
	))
}

// allHandlers declares the function that takes one route of each destination, on
// a line of its own.
func allHandlers(f *jen.File, destinations []*model.Destination) {
	var params, routes []jen.Code
	for _, d := range destinations {
		params = append(params, jen.Id(d.GoArg).Id(routeOf(d)))
		routes = append(routes, jen.Id(d.GoArg))
	}
	declare(f, []string{
		"AllHandlers are the handlers of a dispatcher that delivers to every destination.\n" +
			"One more destination is one more argument, so that none is forgotten.",
	}, jen.Func().Id("AllHandlers").Add(argumentLines(params)).Id("Handlers").Block(
		jen.Return(jen.Id("SomeHandlers").Add(argumentLines(routes))),
	))
}

func handlerOf(d *model.Destination) string { return d.GoName + "Handler" }
func handleOf(d *model.Destination) string  { return "Handle" + d.GoName }
func routeOf(d *model.Destination) string   { return d.GoName + "Route" }
