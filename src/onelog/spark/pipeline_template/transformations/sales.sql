-- What each category sold; computed anew in each run.
CREATE MATERIALIZED VIEW sales_by_category AS
SELECT category, count(*) AS orders, sum(amount) AS revenue, max(ordered_at) AS last_order
FROM orders
WHERE category IS NOT NULL
GROUP BY category;
