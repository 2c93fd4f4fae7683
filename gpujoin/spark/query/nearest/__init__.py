"""As-of joins as SQL spells them: joins by order of whose matches an operation above needs the nearest one alone.

``max(r.t)`` over ``r.t <= l.t`` reads of each left row's matches only the latest, and so do ``max_by(r.x, r.t)``,
``max(struct(r.t, …))``, and ``row_number()`` over rows in descending order of ``r.t`` of which the first is kept. What
such an operation groups or partitions by has one value for all matches of a left row. So the join may give of each left
row's matches the latest, and the operation above, which stays as it is, finds the same: the greatest of all matches is
the greatest of those. Correlated subqueries and lateral joins with ``ORDER BY … LIMIT 1`` are such operations over such
joins once Spark has decorrelated them.

Which of several matches of equal order ``max_by`` and ``row_number`` take is as little said here as in Spark. Further
order keys of the other side, and further fields of a struct, decide, and are told with the mark.
"""
